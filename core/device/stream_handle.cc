#include "core/device/stream_handle.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/thread.h"
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
  const absl::StatusOr<bool> is_done = end_->IsDone();
  if (!is_done.ok()) {
    End(is_done.status());
    return true;
  }
  if (!*is_done) return false;
  const std::optional<absl::Status> verdict = Verdict();
  if (!verdict.has_value()) return false;
  End(verdict->ok() ? absl::StatusOr<int>(source_) : *verdict);
  return true;
}

void StreamHandle::End(const absl::StatusOr<int>& outcome) {
  std::vector<std::function<void(const absl::StatusOr<int>&)>> callbacks;
  {
    absl::MutexLock lock(&mutex_);
    if (outcome_.has_value()) return;
    outcome_ = outcome;
    callbacks.swap(callbacks_);
  }
  ++callback_depth;
  for (const auto& callback : callbacks) callback(outcome);
  --callback_depth;
}

bool StreamHandle::IsCallingBack() { return callback_depth > 0; }

absl::StatusOr<int> StreamHandle::Wait(const Deadline& deadline) {
  const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return outcome_.has_value(); };
  absl::Duration pause = kShortestPause;
  while (!Poll()) {
    {
      // A call that fails wakes the wait at once.
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&ended), pause);
    }
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
    if (deadline.Expired() && !Poll()) {
      return TimeoutError(absl::StrCat("the device has not ended its work within ",
                                       absl::FormatDuration(deadline.timeout())));
    }
    pause = Longer(pause);
  }
  absl::MutexLock lock(&mutex_);
  return *outcome_;
}

bool StreamHandle::IsDone() const { return const_cast<StreamHandle*>(this)->Poll(); }

void StreamHandle::OnDone(std::function<void(const absl::StatusOr<int>&)> callback) {
  std::optional<absl::StatusOr<int>> outcome;
  {
    absl::MutexLock lock(&mutex_);
    outcome = outcome_;
    if (!outcome.has_value()) callbacks_.push_back(std::move(callback));
  }
  if (outcome.has_value()) callback(*outcome);
}

absl::Status StreamHandle::EnqueueWait(const Stream& stream) {
  {
    absl::MutexLock lock(&mutex_);
    if (outcome_.has_value() && !outcome_->ok()) return outcome_->status();
  }
  for (const Device& other : others_) {
    SYNCLINE_RETURN_IF_ERROR(end_->EnqueueWait(CurrentStream(other)));
  }
  return end_->EnqueueWait(stream);
}

bool StreamHandle::HasEnded() const {
  absl::MutexLock lock(&mutex_);
  return outcome_.has_value();
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
