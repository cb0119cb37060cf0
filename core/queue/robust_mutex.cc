#include "core/queue/robust_mutex.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::queue {
namespace {

// Attempts before a sleep: the mutex is held for so short a time that the owner, if it runs, is
// about to release it.
constexpr int kSpins = 100;

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// On the monotonic clock.
timespec After(absl::Duration time) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::ToTimespec(absl::DurationFromTimespec(now) + time);
}

// 0, EOWNERDEAD, ETIMEDOUT or another error.
int LockFor(pthread_mutex_t* mutex, absl::Duration time) {
  const timespec end = After(time);
  return pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &end);
}

}  // namespace

absl::Status RobustMutex::Init() {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int error = pthread_mutex_init(&mutex_, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (error == 0) return absl::OkStatus();
  return BackendError(absl::StrCat("cannot make a mutex: ", std::strerror(error)));
}

absl::StatusOr<RobustLock> RobustLock::Acquire(RobustMutex& mutex, const Deadline& deadline,
                                               absl::FunctionRef<void()> repair) {
  pthread_mutex_t* const raw = &mutex.mutex_;
  int error = pthread_mutex_trylock(raw);
  for (int i = 0; error == EBUSY && i < kSpins; ++i) {
    Relax();
    error = pthread_mutex_trylock(raw);
  }
  if (error == EBUSY) {
    const Deadline at_least(kMinTimeout);
    while ((error = LockFor(raw, kInterruptInterval)) == ETIMEDOUT) {
      if (deadline.Expired() && at_least.Expired()) {
        return TimeoutError(
            "another process holds the queue's lock and does not go on: is it stopped?");
      }
      SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
    }
  }
  if (error == EOWNERDEAD) {
    repair();
    pthread_mutex_consistent(raw);
    error = 0;
  }
  if (error == 0) return RobustLock(raw);
  return BackendError(absl::StrCat("the queue's lock is broken: ", std::strerror(error)));
}

}  // namespace syncline::queue
