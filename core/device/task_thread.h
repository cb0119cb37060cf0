// The threads on which this process does what a thread that watches devices must not wait for.
#ifndef SYNCLINE_CORE_DEVICE_TASK_THREAD_H_
#define SYNCLINE_CORE_DEVICE_TASK_THREAD_H_

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "syncline/deadline.h"
#include "syncline/fork.h"

namespace syncline::device {

// A thread that runs tasks one after another, in the order in which they are posted. It starts when
// it is first needed, sleeps while there is no task, and lives as long as the process. Thread-safe.
//
// A thread that ends calls must not wait for anything but the calls: if it does, nobody aborts a
// call that has lost a peer, and what it waits for may be that call. So it leaves to these threads
// what may wait: for the interpreter's lock, for a user's code, or, in cuMemFree, for all that the
// device has been given.
class TaskThread {
 public:
  // Made when a task is: to post it takes no memory.
  using Tasks = std::list<std::function<void()>>;

  // Runs the callbacks of calls on devices, and lets go of what these hold.
  static TaskThread& Callbacks();
  // Gives memory of devices back. Another one than Callbacks: that memory comes back late delays no
  // callback.
  static TaskThread& Releases();

  explicit TaskThread(std::string purpose) : purpose_(std::move(purpose)) {}

  // Starts the thread if there is none yet. BackendError if that cannot be done, UnsupportedError
  // in a child of fork whose parent has made this.
  absl::Status Start();

  // Has the thread run `tasks`. Where there is none, and none can be started, and in a child of
  // fork, this thread runs them.
  void Post(Tasks tasks);

  // Waits until all that was posted before has been run. Returns whether it has. Not to be called
  // by a task.
  bool AwaitIdle(const Deadline& deadline);

  // Whether nothing is posted or being run.
  bool IsIdle();

 private:
  void Loop();
  absl::Status StartLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string purpose_;
  const ForkGuard fork_guard_;
  absl::Mutex mutex_;
  bool has_thread_ ABSL_GUARDED_BY(mutex_) = false;
  Tasks tasks_ ABSL_GUARDED_BY(mutex_);
  // How many tasks were posted, and how many of them have been run.
  int64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncline::device

#endif  // SYNCLINE_CORE_DEVICE_TASK_THREAD_H_
