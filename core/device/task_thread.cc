#include "core/device/task_thread.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/thread.h"
#include "syncline/status.h"

namespace syncline::device {

TaskThread& TaskThread::Callbacks() {
  static auto* const callbacks = new TaskThread("callbacks of calls on devices");
  return *callbacks;
}

TaskThread& TaskThread::Releases() {
  static auto* const releases = new TaskThread("memory of devices that is given back");
  return *releases;
}

absl::Status TaskThread::Start() {
  // Before the lock, which a thread of the parent may have had.
  if (fork_guard_.InChild()) {
    return UnsupportedError(absl::StrCat("a child of fork has no thread for ", purpose_));
  }
  absl::MutexLock lock(&mutex_);
  return StartLocked();
}

absl::Status TaskThread::StartLocked() {
  if (has_thread_) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(std::thread started, base::StartThread(purpose_, [this] { Loop(); }));
  started.detach();
  has_thread_ = true;
  return absl::OkStatus();
}

void TaskThread::Post(Tasks tasks) {
  if (tasks.empty()) return;
  if (!fork_guard_.InChild()) {
    absl::MutexLock lock(&mutex_);
    if (StartLocked().ok()) {
      posted_ += static_cast<int64_t>(tasks.size());
      tasks_.splice(tasks_.end(), tasks);
      return;
    }
  }
  for (const auto& task : tasks) task();
}

bool TaskThread::AwaitIdle(const Deadline& deadline) {
  if (fork_guard_.InChild()) return true;
  absl::MutexLock lock(&mutex_);
  const int64_t posted = posted_;
  const auto is_done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return done_ >= posted; };
  return deadline.Await(mutex_, absl::Condition(&is_done));
}

bool TaskThread::IsIdle() {
  if (fork_guard_.InChild()) return true;
  absl::MutexLock lock(&mutex_);
  return done_ == posted_;
}

void TaskThread::Loop() {
  const auto has_task = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !tasks_.empty(); };
  Tasks current;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      // A wait without a deadline, of a thread that has nothing to do.
      mutex_.AwaitWithTimeout(absl::Condition(&has_task), absl::InfiniteDuration());
      if (tasks_.empty()) continue;
      current.splice(current.end(), tasks_, tasks_.begin());
    }
    current.front()();
    current.clear();
    absl::MutexLock lock(&mutex_);
    ++done_;
  }
}

}  // namespace syncline::device
