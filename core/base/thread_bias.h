// Exclusion and counting that cost no locked instruction while one thread does it all.
#ifndef SYNCLINE_CORE_BASE_THREAD_BIAS_H_
#define SYNCLINE_CORE_BASE_THREAD_BIAS_H_

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/asymmetric_fence.h"

namespace syncline::base {

// Tells running threads apart. That of a thread that has ended may be another's later; between the
// two lies all that the system does to end one and start the other.
using ThreadId = uintptr_t;
inline ThreadId ThisThread() {
#if defined(__has_builtin)
#if __has_builtin(__builtin_thread_pointer)
  return reinterpret_cast<ThreadId>(__builtin_thread_pointer());
#else
  return static_cast<ThreadId>(pthread_self());
#endif
#else
  return static_cast<ThreadId>(pthread_self());
#endif
}

// Something that one thread holds again and again, until others want it too: biased locking, as of
// K. Russell and D. Detlefs, "Eliminating Synchronization-Related Atomic Operations with Biased
// Locking and Bulk Rebiasing", OOPSLA 2006; but here the bias ends for good. A compare-and-exchange
// that nobody else attempts takes five nanoseconds, of the sixty of a small collective.
//
// Adopt and End are called under a mutex of the caller's, which also excludes all that hold
// the thing in another way, and are over before that mutex is free.
class ThreadBias {
 public:
  // Whether this thread now holds the thing: if it is the owner and the bias lasts.
  ABSL_ATTRIBUTE_ALWAYS_INLINE bool TryHold() {
    if (owner_.load(std::memory_order_relaxed) != ThisThread() || has_ended()) return false;
    is_held_.store(true, std::memory_order_relaxed);
    AsymmetricThreadFenceLight();  // Pairs with the heavy one in End.
    if (ABSL_PREDICT_TRUE(!has_ended_.load(std::memory_order_acquire))) return true;
    is_held_.store(false, std::memory_order_release);
    return false;
  }
  // Whether this thread holds it, as TryHold has said.
  bool IsHeldByThisThread() const {
    return owner_.load(std::memory_order_relaxed) == ThisThread() &&
           is_held_.load(std::memory_order_relaxed);
  }
  // Once it is let go, nothing here is touched any more.
  void LetGo() { is_held_.store(false, std::memory_order_release); }

  // Makes this thread the owner, if there has been none and the bias has not ended.
  bool Adopt() {
    if (has_ended_.load(std::memory_order_relaxed)) return false;
    if (owner_.load(std::memory_order_relaxed) != kNoThread) return false;
    owner_.store(ThisThread(), std::memory_order_relaxed);
    return true;
  }
  // TryHold fails from now on. The owner may hold the thing still: until IsHeld is false.
  void End() {
    if (has_ended_.load(std::memory_order_relaxed)) return;
    has_ended_.store(true, std::memory_order_release);
    AsymmetricThreadFenceHeavy();
  }
  bool has_ended() const { return has_ended_.load(std::memory_order_relaxed); }
  // After End. May be true for a moment while the owner finds out that the bias has ended; once
  // false, it stays so.
  bool IsHeld() const { return is_held_.load(std::memory_order_acquire); }

 private:
  static constexpr ThreadId kNoThread = 0;

  std::atomic<ThreadId> owner_{kNoThread};
  std::atomic<bool> is_held_{false};  // Written by the owner alone.
  std::atomic<bool> has_ended_{false};
};

// A mutex for short sections, which the first thread that locks it does almost for free until
// another does.
class ABSL_LOCKABLE BiasedMutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (ABSL_PREDICT_FALSE(!bias_.TryHold())) LockSlowly();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (ABSL_PREDICT_TRUE(bias_.IsHeldByThisThread())) {
      bias_.LetGo();
    } else {
      mutex_.Unlock();
    }
  }

 private:
  void LockSlowly() ABSL_NO_THREAD_SAFETY_ANALYSIS;

  ThreadBias bias_;
  absl::Mutex mutex_;  // Held by whoever locks after the bias has ended.
};

class ABSL_SCOPED_LOCKABLE BiasedMutexLock {
 public:
  explicit BiasedMutexLock(BiasedMutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(*mutex) {
    mutex_.Lock();
  }
  ~BiasedMutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }

  BiasedMutexLock(const BiasedMutexLock&) = delete;
  BiasedMutexLock& operator=(const BiasedMutexLock&) = delete;

 private:
  BiasedMutex& mutex_;
};

// A counter that is changed often, by one thread for the most part, and read hardly ever. Valid
// when all its bytes are zero, and in memory that processes share; the threads that change it are
// of one process, which has one Owner for it.
class BiasedCounter {
 public:
  // The first thread that changes the counter.
  using Owner = std::atomic<ThreadId>;

  // Releases what was written before.
  void Add(Owner& owner, int n) {
    ThreadId first = owner.load(std::memory_order_relaxed);
    if (ABSL_PREDICT_FALSE(first == 0) &&
        owner.compare_exchange_strong(first, ThisThread(), std::memory_order_relaxed)) {
      first = ThisThread();
    }
    if (ABSL_PREDICT_TRUE(first == ThisThread())) {
      of_owner_.store(of_owner_.load(std::memory_order_relaxed) + n, std::memory_order_release);
    } else {
      of_others_.fetch_add(n, std::memory_order_release);
    }
  }
  // For a reader in another thread, an AsymmetricThreadFenceHeavy before orders this after what
  // threads do after Add and a light fence.
  int value() const {
    return of_owner_.load(std::memory_order_acquire) + of_others_.load(std::memory_order_acquire);
  }

 private:
  std::atomic<int> of_owner_, of_others_;
};

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_THREAD_BIAS_H_
