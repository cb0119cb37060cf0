#include "syncline/work.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "syncline/deadline.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"
#include "syncline/stream.h"

namespace syncline {
namespace {

bool IsFinal(Work::State state) {
  return state != Work::State::kPending && state != Work::State::kRunning;
}

Work::State StateFor(const absl::Status& status) {
  if (status.ok()) return Work::State::kDone;
  return KindOf(status) == ErrorKind::kTimeout ? Work::State::kTimedOut : Work::State::kFailed;
}

}  // namespace

absl::Status Work::Wait(std::optional<absl::Duration> timeout) {
  if (timeout.has_value()) return Synchronize(*timeout);
  if (fork_guard_.InChild()) return LostToChild();
  std::shared_ptr<Completion::Handle> handle;
  Device device;
  {
    absl::MutexLock lock(&mutex_);
    const auto is_known = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return IsFinal(state_) || handle_ != nullptr;
    };
    if (!Deadline(absl::InfiniteDuration())
             .AwaitInterruptibly(mutex_, absl::Condition(&is_known))) {
      return Annotate(Interruption(),
                      absl::StrCat(description_, " goes on, the wait for it has ended"));
    }
    // Also of an operation that has succeeded: the current stream may be behind the device.
    if (handle_ == nullptr || (IsFinal(state_) && !status_.ok())) return status_;
    handle = handle_;
    device = device_;
  }
  return handle->EnqueueWait(CurrentStream(device));
}

absl::Status Work::Synchronize(absl::Duration timeout) {
  if (fork_guard_.InChild()) return LostToChild();
  const Deadline deadline(timeout);
  if (const auto handle = this->handle()) {
    // Its end finishes this work, on this thread or on another one.
    handle->Wait(deadline).IgnoreError();
  }
  absl::MutexLock lock(&mutex_);
  const auto finished = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return IsFinal(state_); };
  if (deadline.AwaitInterruptibly(mutex_, absl::Condition(&finished))) return status_;
  SYNCLINE_RETURN_IF_ERROR(
      Annotate(Interruption(), absl::StrCat(description_, " goes on, the wait for it has ended")));
  return TimeoutError(absl::StrCat(
      description_, " has not finished after a wait of ", absl::FormatDuration(timeout), "; it is ",
      state_ == State::kRunning ? "running" : "queued behind earlier operations",
      " and goes on until its own deadline: wait again, or wait longer"));
}

bool Work::IsCompleted() const {
  if (fork_guard_.InChild()) return true;
  const auto handle = this->handle();
  if (handle != nullptr) handle->IsDone();  // Which finishes this work.
  return IsFinal(state());
}

std::shared_ptr<Completion::Handle> Work::handle() const {
  absl::MutexLock lock(&mutex_);
  return IsFinal(state_) ? nullptr : handle_;
}

Work::State Work::state() const {
  if (fork_guard_.InChild()) return State::kFailed;
  absl::MutexLock lock(&mutex_);
  return state_;
}

absl::Status Work::status() const {
  if (fork_guard_.InChild()) return LostToChild();
  absl::MutexLock lock(&mutex_);
  return status_;
}

void Work::OnComplete(std::function<void(const absl::Status&)> callback) {
  absl::Status outcome;
  if (fork_guard_.InChild()) {
    outcome = LostToChild();
  } else {
    absl::MutexLock lock(&mutex_);
    if (!IsFinal(state_)) {
      callbacks_.push_back(std::move(callback));
      return;
    }
    outcome = status_;
  }
  callback(outcome);
}

absl::Status Work::LostToChild() const {
  return BackendError(absl::StrCat("this process was forked after ", description_,
                                   " was started: only its parent can wait for it"));
}

void Work::Start() {
  absl::MutexLock lock(&mutex_);
  ABSL_ASSERT(state_ == State::kPending);
  state_ = State::kRunning;
}

void Work::Enqueued(const Device& device, std::shared_ptr<Completion::Handle> handle) {
  absl::MutexLock lock(&mutex_);
  device_ = device;
  handle_ = std::move(handle);
}

int Work::source_rank() const {
  if (fork_guard_.InChild()) return -1;
  absl::MutexLock lock(&mutex_);
  return source_;
}

void Work::Finish(absl::Status status, int source, absl::FunctionRef<void()> settled) {
  std::vector<std::function<void(const absl::Status&)>> callbacks;
  {
    absl::MutexLock lock(&mutex_);
    ABSL_ASSERT(!IsFinal(state_));
    state_ = StateFor(status);
    status_ = status;
    if (status.ok()) source_ = source;
    callbacks.swap(callbacks_);
  }
  settled();
  for (const auto& callback : callbacks) callback(status);
}

}  // namespace syncline
