#include "backends/gloo/lifecycle.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "backends/gloo/sigpipe.h"
#include "backends/gloo/transport.h"
#include "core/base/interrupt.h"
#include "core/base/stall.h"
#include "core/base/stall_file.h"
#include "core/base/status.h"

namespace syncline {

absl::Status Lifecycle::Run(const Undertaking& undertaking, const Deadline& deadline, Body body) {
  {
    absl::MutexLock lock(&mutex_);
    if (!cause_.ok()) return cause_;
    under_way_.push_back(&undertaking.call);
  }
  // Also where an exception ends the call: `undertaking` is about to go.
  absl::Cleanup forget = [&] {
    absl::MutexLock lock(&mutex_);
    Forget(undertaking);
  };
  bool has_told = false;
  StallNotice notice;
  const auto on_stall = [&](absl::Duration waited, bool is_due) {
    StallReporter::Wait wait = Stalled(undertaking);
    if (is_due) return stalls_.Report(std::move(wait), waited, notice.id());
    has_told = true;
    stalls_.Tell(wait.name);
  };
  const StallWatch watch(on_stall);
  const absl::Cleanup goes_on = [&] {
    if (has_told) stalls_.Forget();
  };
  const absl::Time start = absl::Now();
  const ScopedSigpipeBlock no_sigpipe;
  absl::Status status;
  status.Update(CatchGloo([&] { status = body(mesh_.ForOperation(deadline)); }));
  if (status.ok()) status = Finish(undertaking);
  if (!status.ok()) {
    const absl::Status interruption = Interruption();
    const absl::Status failure =
        Fail(undertaking, deadline, interruption.ok() ? status : interruption, absl::Now() - start);
    return interruption.ok() ? failure : interruption;
  }
  std::move(forget).Cancel();
  return status;
}

absl::Status Lifecycle::Finish(const Undertaking& undertaking) {
  absl::MutexLock lock(&mutex_);
  // Aborted at the last moment: the peers have yet to be told why.
  if (!cause_.ok() && !told_) return cause_;
  Forget(undertaking);
  if (undertaking.name.empty()) {
    last_ = Call{undertaking.call.kind, undertaking.call.sequence};
    last_->peer = undertaking.call.peer;
    last_->name = undertaking.call.name;
    finished_ = absl::Now();
  }
  return absl::OkStatus();
}

void Lifecycle::Forget(const Undertaking& undertaking) {
  under_way_.erase(std::find(under_way_.begin(), under_way_.end(), &undertaking.call));
}

void Lifecycle::Abort(const absl::Status& cause) {
  const ScopedSigpipeBlock no_sigpipe;
  std::string reason;
  {
    absl::MutexLock lock(&mutex_);
    if (cause_.ok()) cause_ = cause;
    if (!under_way_.empty()) return mesh_.Break();
    reason = std::string(cause_.message());
  }
  // No operation begins any more. The watch, which ends with this, may need mutex_.
  absl::MutexLock lock(&leaving_mutex_);
  mesh_.Leave(reason);
}

void Lifecycle::TellIfIdle() {
  std::string idle;
  {
    absl::MutexLock lock(&mutex_);
    if (!cause_.ok() || !under_way_.empty() || !idle_.empty()) return;
    idle = idle_ = Idleness();
  }
  reporter_.TellIdle(idle);
}

StallReporter::Wait Lifecycle::Stalled(const Undertaking& undertaking) {
  StallReporter::Wait wait;
  wait.name = undertaking.call.ShortName();
  wait.operation =
      undertaking.name.empty() ? undertaking.call.ToString() : std::string(undertaking.name);
  wait.awaited.assign(undertaking.awaited.begin(), undertaking.awaited.end());
  wait.is_collective = !IsP2p(undertaking.call.kind);
  absl::MutexLock lock(&mutex_);
  // This rank has met all others there.
  if (last_.has_value() && !IsP2p(last_->kind)) {
    wait.last_seen = absl::StrCat(
        last_->ShortName(), ", ",
        absl::FormatDuration(absl::Trunc(absl::Now() - finished_, absl::Milliseconds(100))),
        " ago");
  }
  return wait;
}

std::string Lifecycle::Idleness() const {
  if (!last_.has_value()) return "it is in no operation of this group and has been in none";
  return absl::StrCat(
      "it is in no operation of this group, its last was ", last_->ShortName(), ", finished ",
      absl::FormatDuration(absl::Trunc(absl::Now() - finished_, absl::Milliseconds(1))), " ago");
}

// Of several operations that fail at once, the first finds the cause for all.
absl::Status Lifecycle::Fail(const Undertaking& undertaking, const Deadline& deadline,
                             const absl::Status& cause, absl::Duration elapsed) {
  Failure failure;
  failure.operation =
      undertaking.name.empty() ? undertaking.call.ToString() : std::string(undertaking.name);
  failure.awaited.assign(undertaking.awaited.begin(), undertaking.awaited.end());
  failure.cause = cause;
  failure.timeout = deadline.timeout();
  failure.elapsed = elapsed;
  if (IsInterrupted(cause)) {
    failure.cause =
        BackendError(absl::StrCat("rank ", mesh_.roster().rank(), " was ", cause.message()));
  }
  if (deadline.Expired() && KindOf(cause) == ErrorKind::kNetwork) {
    failure.cause =
        TimeoutError(absl::StrCat("not complete after ", absl::FormatDuration(deadline.timeout())));
  }
  mesh_.AwaitEnds(undertaking.awaited);
  mesh_.Break();
  bool aborted;
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(+[](bool* explaining) { return !*explaining; }, &explaining_));
    if (told_) return cause_;
    aborted = !cause_.ok();
    if (aborted) failure.cause = cause_;
    failure.under_way.push_back(undertaking.call);
    for (const Call* call : under_way_) {
      if (call != &undertaking.call) failure.under_way.push_back(*call);
    }
    failure.idle = idle_;
    explaining_ = true;
  }
  failure.left = mesh_.left();
  failure.lost = mesh_.lost();
  // Whatever happens: others wait for it.
  const absl::Cleanup explained = [&] {
    absl::MutexLock lock(&mutex_);
    explaining_ = false;
    told_ = true;
  };
  absl::Status verdict;
  if (aborted) {
    reporter_.Tell(failure);
  } else if (IsInterrupted(cause)) {
    reporter_.Tell(failure);  // The cause is known, and the user is in a hurry.
    verdict = Annotate(failure.cause, failure.operation);
  } else {
    verdict = reporter_.Explain(failure);
  }
  absl::MutexLock lock(&mutex_);
  if (cause_.ok()) cause_ = verdict;
  return cause_;
}

}  // namespace syncline
