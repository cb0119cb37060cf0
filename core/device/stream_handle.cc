#include "core/device/stream_handle.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/thread.h"
#include "core/device/task_thread.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

// How often the device is asked: at first as often as short work ends, later seldom.
constexpr absl::Duration kShortestPause = absl::Microseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(1);

// The callbacks of handles that this thread is in.
thread_local int callback_depth = 0;

absl::Duration Longer(absl::Duration pause) { return std::min(pause * 1.25, kLongestPause); }

}  // namespace

bool StreamHandle::Poll() {
  if (HasEnded()) return true;
  const std::optional<absl::StatusOr<int>> outcome = FindOutcome();
  if (!outcome.has_value()) return false;
  End(*outcome);
  return true;
}

bool StreamHandle::PollAndCallBack() {
  if (!HasEnded()) {
    const std::optional<absl::StatusOr<int>> outcome = FindOutcome();
    if (!outcome.has_value()) return false;
    SetOutcome(*outcome);
  }
  // Also those that wait for TaskThread::Callbacks(), which may be in another call's.
  RunCallbacks(*state_, end_);
  return true;
}

void StreamHandle::End(const absl::StatusOr<int>& outcome) {
  if (!SetOutcome(outcome)) return;
  TaskThread::Tasks task;
  task.emplace_back([state = state_, end = end_] { RunCallbacks(*state, end); });
  TaskThread::Callbacks().Post(std::move(task));
}

std::optional<absl::StatusOr<int>> StreamHandle::FindOutcome() {
  const absl::StatusOr<bool> is_done = end_->IsDone();
  if (!is_done.ok()) return is_done.status();
  if (!*is_done) return std::nullopt;
  const std::optional<absl::Status> verdict = Verdict();
  if (!verdict.has_value()) return std::nullopt;
  return verdict->ok() ? absl::StatusOr<int>(source_) : *verdict;
}

bool StreamHandle::SetOutcome(const absl::StatusOr<int>& outcome) {
  bool has_callbacks;
  {
    absl::MutexLock lock(&state_->mutex);
    if (state_->outcome.has_value()) return false;
    state_->outcome = outcome;
    has_callbacks = !state_->callbacks.empty();
  }
  Ended(outcome);
  return has_callbacks;
}

void StreamHandle::RunCallbacks(State& state, const std::shared_ptr<const Event>& end) {
  Callbacks callbacks;
  std::optional<absl::StatusOr<int>> outcome;
  {
    absl::MutexLock lock(&state.mutex);
    if (state.callbacks.empty()) return;
    callbacks.swap(state.callbacks);
    outcome = state.outcome;
  }
  ++callback_depth;
  for (const auto& callback : callbacks) callback(*outcome);
  LetGo(std::move(callbacks), end);
  --callback_depth;
}

void StreamHandle::LetGo(Callbacks callbacks, const std::shared_ptr<const Event>& end) {
  if (callbacks.empty()) return;
  const absl::StatusOr<bool> is_done = end->IsDone();
  // A device that has failed does nothing any more.
  if (!is_done.ok() || *is_done) return;
  const auto held = std::make_shared<const Callbacks>(std::move(callbacks));
  if (KeepUntil(end, held).ok()) return;
  // Nobody can watch: what the device may still write is never given back.
  new std::shared_ptr<const void>(held);
}

bool StreamHandle::IsCallingBack() { return callback_depth > 0; }

absl::StatusOr<int> StreamHandle::Wait(const Deadline& deadline) {
  State& state = *state_;
  const auto ended = [&]() ABSL_SHARED_LOCKS_REQUIRED(state.mutex) {
    return state.outcome.has_value();
  };
  absl::Duration pause = kShortestPause;
  while (!PollAndCallBack()) {
    {
      // A call that fails wakes the wait at once.
      absl::MutexLock lock(&state.mutex);
      state.mutex.AwaitWithTimeout(absl::Condition(&ended), pause);
    }
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
    if (deadline.Expired() && !PollAndCallBack()) {
      return TimeoutError(absl::StrCat("the device has not ended its work within ",
                                       absl::FormatDuration(deadline.timeout())));
    }
    pause = Longer(pause);
  }
  absl::MutexLock lock(&state.mutex);
  return *state.outcome;
}

bool StreamHandle::IsDone() const { return const_cast<StreamHandle*>(this)->PollAndCallBack(); }

void StreamHandle::OnDone(std::function<void(const absl::StatusOr<int>&)> callback) {
  std::optional<absl::StatusOr<int>> outcome;
  Callbacks callbacks;
  {
    absl::MutexLock lock(&state_->mutex);
    outcome = state_->outcome;
    (outcome.has_value() ? callbacks : state_->callbacks).push_back(std::move(callback));
  }
  if (!outcome.has_value()) return;
  callbacks.front()(*outcome);
  LetGo(std::move(callbacks), end_);
}

absl::Status StreamHandle::EnqueueWait(const Stream& stream) {
  {
    State& state = *state_;
    absl::MutexLock lock(&state.mutex);
    if (state.outcome.has_value() && !state.outcome->ok()) return state.outcome->status();
  }
  for (const Device& other : others_) {
    SYNCLINE_RETURN_IF_ERROR(end_->EnqueueWait(CurrentStream(other)));
  }
  return end_->EnqueueWait(stream);
}

bool StreamHandle::HasEnded() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->outcome.has_value();
}

StreamWatcher& StreamWatcher::Get() {
  static auto* const watcher = new StreamWatcher;
  return *watcher;
}

absl::Status StreamWatcher::Watch(std::shared_ptr<StreamHandle> handle, const Deadline& deadline) {
  // Before the lock, which a thread of the parent may have had.
  if (fork_guard_.InChild()) {
    return UnsupportedError("work of a device cannot be watched in a child of fork");
  }
  // What ends a call hands its callbacks to that one.
  SYNCLINE_RETURN_IF_ERROR(TaskThread::Callbacks().Start());
  absl::MutexLock lock(&mutex_);
  if (!has_thread_) {
    SYNCLINE_ASSIGN_OR_RETURN(std::thread started,
                              base::StartThread("ends of work on devices", [this] { Loop(); }));
    started.detach();
    has_thread_ = true;
  }
  added_.push_back({std::move(handle), deadline});
  return absl::OkStatus();
}

void StreamWatcher::Loop() {
  std::vector<Watched> watched;
  absl::Duration pause = kShortestPause;
  const auto has_more = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !added_.empty(); };
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      // A wait without a deadline, of a thread that has nothing to do.
      const absl::Duration limit = watched.empty() ? absl::InfiniteDuration() : pause;
      if (mutex_.AwaitWithTimeout(absl::Condition(&has_more), limit)) {
        std::move(added_.begin(), added_.end(), std::back_inserter(watched));
        added_.clear();
        pause = kShortestPause;
      }
    }
    const auto has_ended = [](const Watched& item) {
      if (item.handle->Poll()) return true;
      if (!item.deadline.Expired()) return false;
      item.handle->End(TimeoutError(absl::StrCat("the device has not ended its work within ",
                                                 absl::FormatDuration(item.deadline.timeout()))));
      return true;
    };
    const auto rest = std::remove_if(watched.begin(), watched.end(), has_ended);
    pause = rest == watched.end() ? Longer(pause) : kShortestPause;
    watched.erase(rest, watched.end());
  }
}

absl::Status KeepUntil(std::shared_ptr<const Event> event, std::shared_ptr<const void> held) {
  auto keeper = std::make_shared<StreamHandle>(std::move(event));
  keeper->OnDone([held = std::move(held)](const absl::StatusOr<int>&) {});
  return StreamWatcher::Get().Watch(std::move(keeper), Deadline(absl::InfiniteDuration()));
}

}  // namespace syncline::device
