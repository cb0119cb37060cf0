#include "backends/common/lifecycle.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/stall.h"
#include "core/base/stall_file.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::backends {

Lifecycle::Awaited Lifecycle::OperationScope::WhoIsAwaited() const {
  if (awaited_now != nullptr) {
    Awaited now = (*awaited_now)();
    if (!now.ranks.empty()) return now;
  }
  return {{awaited.begin(), awaited.end()}};
}

absl::Status Lifecycle::Run(const OperationScope& scope, Body body) {
  {
    absl::MutexLock lock(&mutex_);
    if (!cause_.ok()) return cause_;
    under_way_.push_back(&scope.call);
  }
  // On every way out, also by an exception: `scope` ends with this function.
  absl::Cleanup remove = [&] {
    absl::MutexLock lock(&mutex_);
    Remove(scope);
  };
  // A long wait is first only published, so that by the time when this rank warns, all others have
  // published theirs.
  std::optional<std::vector<int>> published;  // The ranks for which it then waited.
  base::StallNotice notice;
  const auto on_stall = [&](absl::Duration waited, bool is_due) {
    StallReporter::Wait wait = DescribeWait(scope);
    if (published != wait.awaited) stalls_.PublishWait(wait);
    published = wait.awaited;
    if (is_due) stalls_.Report(std::move(wait), waited, notice.id());
  };
  const base::StallWatch watch(on_stall);
  const absl::Cleanup clear_wait = [&] {
    if (published.has_value()) stalls_.ClearWait();
  };
  const absl::Time start = absl::Now();
  absl::Status status;
  try {
    status = body();
  } catch (const std::bad_alloc&) {  // The others must hear that this call has failed, and why.
    status = BackendError("out of memory: no memory for the buffers of the operation");
  }
  if (status.ok()) status = Finish(scope);
  if (!status.ok()) {
    // The other ranks learn of an interrupt as a failure; the caller gets it as it is.
    const absl::Status interruption = Interruption();
    const absl::Status failure =
        Fail(scope, interruption.ok() ? status : interruption, absl::Now() - start);
    return interruption.ok() ? failure : interruption;
  }
  std::move(remove).Cancel();  // Finish has removed it.
  return status;
}

absl::Status Lifecycle::Finish(const OperationScope& scope) {
  absl::MutexLock lock(&mutex_);
  // Abort came after the body's last wait. It has closed the connections, so this operation must
  // report why.
  if (!cause_.ok() && !is_reported_) return cause_;
  Remove(scope);
  // An operation with a name of its own, such as connecting, is none that a user knows.
  if (scope.name.empty()) {
    const Collective& call = *scope.call.collective;
    last_.emplace(call.kind, scope.call.sequence);
    last_->peer = call.peer;
    last_->name = call.user_name;
    all_met_in_last_ = !IsP2p(call.kind) && scope.awaited_now == nullptr;
    finished_ = absl::Now();
  }
  return absl::OkStatus();
}

void Lifecycle::Remove(const OperationScope& scope) {
  under_way_.erase(std::find(under_way_.begin(), under_way_.end(), &scope.call));
}

void Lifecycle::Abort(const absl::Status& cause) {
  std::string reason;
  {
    absl::MutexLock lock(&mutex_);
    if (cause_.ok()) {
      cause_ = cause;
      is_leaving_ = under_way_.empty();
    }
    if (!under_way_.empty()) return connections_.Disconnect();
    reason = std::string(cause_.message());
  }
  // From here on cause_ keeps operations from beginning, so Leave needs no mutex_. It must not hold
  // it either: Leave may join a thread that is in ReportIfIdle.
  absl::MutexLock lock(&leaving_mutex_);
  connections_.Leave(reason);
}

void Lifecycle::ReportIfIdle() {
  std::string idle;
  {
    absl::MutexLock lock(&mutex_);
    if (!cause_.ok() || !under_way_.empty() || !idle_.empty()) return;
    idle = idle_ = DescribeIdle();
  }
  reporter_.ReportIdle(idle);
}

StallReporter::Wait Lifecycle::DescribeWait(const OperationScope& scope) {
  StallReporter::Wait wait;
  const CallDescription call(scope.call);
  wait.name = call.ShortName();
  wait.operation = scope.name.empty() ? call.ToString() : std::string(scope.name);
  if (scope.awaited_now != nullptr) wait.awaited = (*scope.awaited_now)().ranks;
  wait.awaits_all = wait.awaited.empty();
  if (wait.awaits_all) wait.awaited.assign(scope.awaited.begin(), scope.awaited.end());
  wait.is_collective = !IsP2p(call.kind);
  absl::MutexLock lock(&mutex_);
  if (last_.has_value() && all_met_in_last_) {
    wait.last_seen = absl::StrCat(
        last_->ShortName(), ", ",
        absl::FormatDuration(absl::Trunc(absl::Now() - finished_, absl::Milliseconds(100))),
        " ago");
  }
  return wait;
}

std::string Lifecycle::DescribeIdle() const {
  if (!last_.has_value()) return "it is in no operation of this group and has been in none";
  return absl::StrCat(
      "it is in no operation of this group, its last was ", last_->ShortName(), ", finished ",
      absl::FormatDuration(absl::Trunc(absl::Now() - finished_, absl::Milliseconds(1))), " ago");
}

Failure Lifecycle::DescribeFailure(const OperationScope& scope, const absl::Status& cause,
                                   absl::Duration elapsed) const {
  const Deadline& deadline = scope.call.deadline;
  Failure failure;
  failure.operation =
      scope.name.empty() ? CallDescription(scope.call).ToString() : std::string(scope.name);
  if (scope.name.empty()) {
    failure.call = CallDescription(scope.call).OperationOf(connections_.peers().rank());
  }
  Awaited awaited = scope.WhoIsAwaited();
  if (scope.awaited_now != nullptr) failure.waits_for = (*scope.awaited_now)().ranks;
  failure.awaited = std::move(awaited.ranks);
  failure.awaited_in = std::move(awaited.call);
  failure.cause = cause;
  failure.timeout = deadline.timeout();
  failure.elapsed = elapsed;
  if (IsInterrupted(cause)) {
    const int rank = connections_.peers().rank();
    failure.cause =
        WithRanks(BackendError(absl::StrCat("rank ", rank, " was ", cause.message())), {rank});
  }
  // Transports such as Gloo report an expired wait as a network error, like everything else.
  if (deadline.Expired() && KindOf(cause) == ErrorKind::kNetwork) {
    failure.cause =
        TimeoutError(absl::StrCat("not complete after ", absl::FormatDuration(deadline.timeout())));
  }
  return failure;
}

// If several operations fail at once, the first finds the cause for all of them.
absl::Status Lifecycle::Fail(const OperationScope& scope, const absl::Status& cause,
                             absl::Duration elapsed) {
  Failure failure = DescribeFailure(scope, cause, elapsed);
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(+[](bool* diagnosing) { return !*diagnosing; }, &diagnosing_));
    if (is_reported_) return cause_;
    diagnosing_ = true;
  }
  // On every way out: other failed operations wait for it.
  const absl::Cleanup end_diagnosis = [&] {
    absl::MutexLock lock(&mutex_);
    if (cause_.ok()) cause_ = cause;  // An exception.
    diagnosing_ = false;
    is_reported_ = true;
  };
  // Which peers left and which were lost must be known before this rank closes its own connections,
  // after which all look alike. Closing them ends the other ranks' waits, and those of this rank's
  // other operations, which must not take that for the cause.
  connections_.AwaitDisconnects(failure.awaited);
  connections_.Disconnect();
  bool is_aborted;
  {
    absl::MutexLock lock(&mutex_);
    is_aborted = !cause_.ok();
    if (is_aborted) failure.cause = cause_;
    failure.under_way.push_back(CallDescription(scope.call));
    for (const CallContext* call : under_way_) {
      if (call != &scope.call) failure.under_way.push_back(CallDescription(*call));
    }
    failure.idle = idle_;
  }
  failure.left = connections_.left();
  failure.lost = connections_.lost();
  failure.given_up = connections_.given_up();
  absl::Status final_error;
  if (is_aborted) {
    reporter_.Report(failure);
  } else if (IsInterrupted(cause)) {
    reporter_.Report(failure);  // The cause is known, and the user wants control back.
    final_error = Annotate(failure.cause, failure.operation);
    if (!failure.call.name.empty()) final_error = WithOperation(final_error, failure.call);
  } else {
    final_error = reporter_.Diagnose(failure);
  }
  absl::MutexLock lock(&mutex_);
  if (cause_.ok()) cause_ = final_error;
  return cause_;
}

}  // namespace syncline::backends
