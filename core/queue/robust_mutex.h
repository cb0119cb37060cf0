// RobustMutex: a mutex in shared memory that survives the death of its owner.
#ifndef SYNCLINE_CORE_QUEUE_ROBUST_MUTEX_H_
#define SYNCLINE_CORE_QUEUE_ROBUST_MUTEX_H_

#include <pthread.h>

#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "syncline/deadline.h"

namespace syncline::queue {

// A mutex for threads of several processes. The kernel releases it when its owner dies. It lies in
// memory that the processes share, and is never destroyed: the memory is freed with it.
class RobustMutex {
 public:
  // Once, before anyone else can see it.
  absl::Status Init();

 private:
  friend class RobustLock;
  pthread_mutex_t mutex_;
};

// Holds a RobustMutex for as long as it lives. Belongs to one thread.
class RobustLock {
 public:
  // A stopped process may hold a mutex. A lock waits for it until its deadline, and at least so
  // long, since a mutex is otherwise held for less than a microsecond.
  static constexpr absl::Duration kMinTimeout = absl::Milliseconds(100);

  // Locks `mutex`. If its last owner died with it, first calls `repair`, which restores what the
  // mutex guards; it is called again if this thread dies in it. TimeoutError; an InterruptedError;
  // BackendError if the memory does not hold a mutex.
  static absl::StatusOr<RobustLock> Acquire(RobustMutex& mutex, const Deadline& deadline,
                                            absl::FunctionRef<void()> repair);

  RobustLock(RobustLock&& other) noexcept : mutex_(std::exchange(other.mutex_, nullptr)) {}
  ~RobustLock() { Release(); }

  void Release() {
    if (mutex_ != nullptr) pthread_mutex_unlock(std::exchange(mutex_, nullptr));
  }

 private:
  explicit RobustLock(pthread_mutex_t* mutex) : mutex_(mutex) {}

  pthread_mutex_t* mutex_;
};

}  // namespace syncline::queue

#endif  // SYNCLINE_CORE_QUEUE_ROBUST_MUTEX_H_
