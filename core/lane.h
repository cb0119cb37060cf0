// A queue of operations that take effect one after another, in the order of issue.
#ifndef SYNCLINE_CORE_LANE_H_
#define SYNCLINE_CORE_LANE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace syncline {

// Operations of a group run here. An operation that someone waits for anyway runs on the waiting
// thread if the lane is idle: no hand-off, since latency is the product. All others run on one
// thread, which is started when it is first needed. Thread-safe.
class Lane {
 public:
  Lane() = default;
  ~Lane();  // Runs what is still queued; the owner has seen to it that this is quick.

  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Runs `operation` after all earlier ones, with its number in the lane, and returns its outcome.
  absl::Status Run(absl::FunctionRef<absl::Status(uint64_t number)> operation);

  // Queues what `issue` returns, given its number, behind all earlier operations; returns at once.
  // `issue` is called during the call, under the lane's lock.
  void Post(absl::FunctionRef<std::function<void()>(uint64_t number)> issue);

 private:
  void Enqueue(std::function<void()> operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Loop();
  bool HasTurn() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !busy_ && (!queue_.empty() || stopping_);
  }

  absl::Mutex mutex_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t issued_ ABSL_GUARDED_BY(mutex_) = 0;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // An operation is running, on whatever thread.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_LANE_H_
