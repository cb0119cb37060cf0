#include "backends/nccl/watchdog.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/thread.h"
#include "core/device/task_thread.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::nccl {
namespace {

// How often pending calls are looked at: at first as often as short work ends.
constexpr absl::Duration kShortestPause = absl::Microseconds(200);
constexpr absl::Duration kLongestPause = absl::Milliseconds(2);
// How long it sleeps when nothing is pending, unless it is woken.
constexpr absl::Duration kIdlePause = absl::Seconds(1);

// How long calls that all ranks have made may go on when the group fails.
constexpr absl::Duration kDrainTime = absl::Milliseconds(100);

// How long the calls wait for NCCL to have ended their work.
constexpr absl::Duration kAbortTime = absl::Milliseconds(500);

// How long a wait that has come to the call's deadline waits for the watchdog.
constexpr absl::Duration kEndTime = absl::Seconds(2);

// After an error of NCCL, which may be what follows from the end of a peer: how long this looks for
// that, which says more.
constexpr absl::Duration kBlameTime = absl::Milliseconds(300);

// The end of what is no work.
class NoWork final : public device::Event {
 public:
  const Device& device() const override { return device_; }
  absl::StatusOr<bool> IsDone() const override { return true; }
  absl::Status EnqueueWait(const Stream&) const override { return absl::OkStatus(); }

 private:
  const Device device_;
};

}  // namespace

PendingCall::PendingCall(const std::shared_ptr<const device::Event>& end, int source,
                         PublishedCall call, std::shared_ptr<NcclGroup> group,
                         std::vector<Communicator*> used, std::vector<Device> others,
                         std::vector<std::shared_ptr<void>> kept,
                         std::shared_ptr<const std::atomic<bool>> is_aborting)
    : PendingCall(end != nullptr, end != nullptr ? end : std::make_shared<const NoWork>(), source,
                  std::move(call), std::move(group), std::move(used), std::move(others),
                  std::move(kept), std::move(is_aborting)) {}

PendingCall::PendingCall(bool is_stream_ordered, const std::shared_ptr<const device::Event>& end,
                         int source, PublishedCall call, std::shared_ptr<NcclGroup> group,
                         std::vector<Communicator*> used, std::vector<Device> others,
                         std::vector<std::shared_ptr<void>> kept,
                         std::shared_ptr<const std::atomic<bool>> is_aborting)
    : device::StreamHandle(end, source, std::move(others)),
      end_(end),
      is_stream_ordered_(is_stream_ordered),
      call_(std::move(call)),
      group_(std::move(group)),
      used_(std::move(used)),
      is_aborting_(std::move(is_aborting)) {
  if (!kept.empty()) OnDone([kept = std::move(kept)](const absl::StatusOr<int>&) {});
}

bool PendingCall::HasWorkEnded() const {
  const absl::StatusOr<bool> is_done = end_->IsDone();
  return !is_done.ok() || *is_done;
}

absl::StatusOr<int> PendingCall::Wait(const Deadline& deadline) {
  absl::StatusOr<int> outcome = device::StreamHandle::Wait(deadline);
  if (KindOf(outcome.status()) != ErrorKind::kTimeout || !call_.deadline.Expired()) return outcome;
  return device::StreamHandle::Wait(Deadline(kEndTime));
}

absl::Status PendingCall::EnqueueWait(const Stream& stream) {
  if (!is_stream_ordered_) return Completion::Handle::EnqueueWait(stream);
  return device::StreamHandle::EnqueueWait(stream);
}

std::optional<absl::Status> PendingCall::Verdict() {
  // The work has ended: by itself, unless the communicators are being aborted.
  if (is_stream_ordered_ && is_aborting_->load()) return std::nullopt;
  const std::optional<absl::Status> verdict = group_->Verdict(call_);
  // The watchdog ends a call that has failed, after its work.
  return verdict.has_value() && verdict->ok() ? verdict : std::nullopt;
}

void PendingCall::Ended(const absl::StatusOr<int>& outcome) {
  if (outcome.ok()) return group_->Finish(call_);
  // An error of the device. Those that the watchdog passes on have failed the group before.
  group_->Fail(outcome.status(), &call_.description).IgnoreError();
}

absl::Status Watchdog::Start() {
  SYNCLINE_RETURN_IF_ERROR(device::TaskThread::Callbacks().Start());
  SYNCLINE_ASSIGN_OR_RETURN(
      thread_, base::StartThread("calls of NCCL", [self = shared_from_this()] { self->Loop(); }));
  return absl::OkStatus();
}

void Watchdog::Add(const std::shared_ptr<PendingCall>& call) {
  {
    absl::MutexLock lock(&mutex_);
    calls_.push_back(call);
  }
  group_->board().Wake();
}

bool Watchdog::HasCalls() {
  std::vector<std::shared_ptr<PendingCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    calls = calls_;
  }
  return std::any_of(calls.begin(), calls.end(), [](const auto& call) { return !call->Poll(); });
}

void Watchdog::AwaitCalls(absl::Duration limit) {
  absl::MutexLock lock(&mutex_);
  const auto has_none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return calls_.empty(); };
  Deadline(limit).Await(mutex_, absl::Condition(&has_none));
}

void Watchdog::Loop() {
  FingerprintBoard& board = group_->board();
  absl::Duration pause = kShortestPause;
  size_t before = 0;
  while (true) {
    const uint32_t epoch = board.Epoch();
    const bool is_over = group_->is_over();
    if (is_over) {
      EndAll();
    } else {
      communicators_->ServeRequests();
      LookAtCalls();
      if (group_->has_captured()) group_->CheckPeers();
    }
    communicators_->JoinServers();
    size_t pending;
    {
      absl::MutexLock lock(&mutex_);
      if (is_stopped_ && is_over) break;
      pending = calls_.size();
    }
    if (is_over && pending == 0) board.Sleep(epoch, kIdlePause);
    if (group_->is_over()) continue;  // Perhaps since a moment: not to be slept over.
    pause = pending == before ? std::min(pause * 1.25, kLongestPause) : kShortestPause;
    before = pending;
    board.Sleep(epoch, pending == 0 ? kIdlePause : pause);
  }
  absl::MutexLock lock(&mutex_);
  has_ended_ = true;
}

void Watchdog::LookAtCalls() {
  std::vector<std::shared_ptr<PendingCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    calls = calls_;
  }
  std::vector<std::shared_ptr<PendingCall>> ended;
  for (const std::shared_ptr<PendingCall>& call : calls) {
    if (call->Poll()) {
      call->call().stall = nullptr;
      ended.push_back(call);
    } else if (group_->Check(call->call()).ok()) {
      LookForAsyncErrors(*call);
    }
    if (group_->is_over()) break;
  }
  absl::MutexLock lock(&mutex_);
  calls_.erase(std::remove_if(calls_.begin(), calls_.end(),
                              [&](const auto& call) {
                                return std::find(ended.begin(), ended.end(), call) != ended.end();
                              }),
               calls_.end());
}

void Watchdog::LookForAsyncErrors(const PendingCall& call) {
  const absl::Status error = communicators_->AsyncError(call.used());
  if (error.ok()) return;
  if (!has_error_) {
    has_error_ = true;
    blame_ = Deadline(kBlameTime);
  }
  if (!blame_.Expired()) return;
  const backends::CallDescription& description = call.call().description;
  group_
      ->Fail(WithOperation(Annotate(error, description.ToString()),
                           description.OperationOf(group_->rank())),
             &description)
      .IgnoreError();
}

void Watchdog::AbortCommunicators() {
  if (is_aborting_->exchange(true)) return;
  const auto abort = [self = shared_from_this()] {
    // What others still take from this rank reaches them.
    if (self->group_->has_left()) {
      self->communicators_->LeaveAll();
    } else {
      self->communicators_->AbortAll();
    }
    absl::MutexLock lock(&self->mutex_);
    self->has_aborted_ = true;
  };
  absl::StatusOr<std::thread> aborter = base::StartThread("the end of NCCL's work", abort);
  if (aborter.ok()) {
    aborter_ = *std::move(aborter);
  } else {
    abort();
  }
}

void Watchdog::EndAll() {
  std::vector<std::shared_ptr<PendingCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    calls = calls_;
  }
  // What ends well by itself stays so: calls that all ranks have made, and before the one that has
  // failed, may be about to.
  for (const Deadline drain(kDrainTime); !is_aborting_->load() && !drain.Expired();) {
    const bool may_end =
        std::any_of(calls.begin(), calls.end(), [&](const std::shared_ptr<PendingCall>& call) {
          return !call->Poll() && group_->HasAgreed(call->call());
        });
    if (!may_end) break;
    absl::SleepFor(kShortestPause);
  }
  AbortCommunicators();
  {
    absl::MutexLock lock(&mutex_);
    Deadline(kAbortTime).Await(mutex_, absl::Condition(&has_aborted_));
  }
  // What comes after NCCL's part, such as copies to the tensors, ends by itself. Where that takes
  // longer, since it waits for the caller's stream, the call ends and keeps what the work uses.
  const Deadline work(kAbortTime);
  for (const std::shared_ptr<PendingCall>& call : calls) {
    while (!call->HasWorkEnded() && !work.Expired()) absl::SleepFor(kShortestPause);
    call->End(group_->Failure(&call->call().description));
    call->call().stall = nullptr;
  }
  group_->SetQuiet();
  absl::MutexLock lock(&mutex_);
  calls_.erase(std::remove_if(calls_.begin(), calls_.end(),
                              [&](const auto& call) {
                                return std::find(calls.begin(), calls.end(), call) != calls.end();
                              }),
               calls_.end());
}

void Watchdog::Stop() {
  bool has_ended;
  {
    absl::MutexLock lock(&mutex_);
    is_stopped_ = true;
  }
  group_->board().Wake();
  if (!thread_.joinable()) return;
  const Deadline deadline(kStopTime);
  {
    absl::MutexLock lock(&mutex_);
    has_ended = deadline.Await(mutex_, absl::Condition(&has_ended_));
  }
  if (!has_ended) return thread_.detach();
  thread_.join();
  StopServers();
  if (!aborter_.joinable()) return;
  bool has_aborted;
  {
    absl::MutexLock lock(&mutex_);
    // While graphs live that were captured from a communicator, NCCL does not end it.
    const Deadline limit = group_->has_captured() ? Deadline(kAbortTime) : deadline;
    has_aborted = limit.Await(mutex_, absl::Condition(&has_aborted_));
  }
  if (has_aborted) {
    aborter_.join();
  } else {
    aborter_.detach();
  }
}

void Watchdog::AwaitEnd(const Deadline& deadline) {
  absl::MutexLock lock(&mutex_);
  deadline.Await(mutex_, absl::Condition(&has_aborted_));
}

void Watchdog::StopServers() {
  const Deadline deadline(kStopTime);
  while (!communicators_->JoinServers()) {
    if (deadline.Expired()) {
      // A store does not answer. The thread keeps all that it uses.
      static_cast<void>(new std::shared_ptr<Watchdog>(shared_from_this()));
      return;
    }
    absl::SleepFor(kShortestPause);
  }
}

}  // namespace syncline::nccl
