#include "syncline/work.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "syncline/deadline.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

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

absl::Status Work::Wait(absl::Duration timeout) {
  if (fork_guard_.InChild()) return LostToChild();
  absl::MutexLock lock(&mutex_);
  const auto finished = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return IsFinal(state_); };
  if (Deadline(timeout).AwaitInterruptibly(mutex_, absl::Condition(&finished))) return status_;
  SYNCLINE_RETURN_IF_ERROR(
      Annotate(Interruption(), absl::StrCat(description_, " goes on, the wait for it has ended")));
  return TimeoutError(absl::StrCat(
      description_, " has not finished after a wait of ", absl::FormatDuration(timeout), "; it is ",
      state_ == State::kRunning ? "running" : "queued behind earlier operations",
      " and goes on until its own deadline: wait again, or wait longer"));
}

bool Work::IsCompleted() const { return IsFinal(state()); }

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
