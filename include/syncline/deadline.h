// Deadline: a point in time at which a wait gives up.
#ifndef SYNCLINE_DEADLINE_H_
#define SYNCLINE_DEADLINE_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "syncline/interrupt.h"

namespace syncline {

// Turns one timeout into the time that is left for each of several waits in a row. Counts on the
// monotonic clock: setting the wall clock does not move it. A value; threads may share one.
//
//   const Deadline deadline(absl::Seconds(30));
//   SYNCLINE_RETURN_IF_ERROR(store.Wait(keys, deadline.Remaining()));
//   SYNCLINE_ASSIGN_OR_RETURN(std::string value, store.Get(key, deadline.Remaining()));
class Deadline {
 public:
  explicit Deadline(absl::Duration timeout) : Deadline(NanosecondsOf(timeout), Now()) {}

  // Counts from the first call of Remaining or Expired. Reading the clock is a fifth of the cost of
  // a call that need not wait. A copy made before counts from its own first call.
  static Deadline FromFirstWait(absl::Duration timeout) {
    return FromFirstWait(NanosecondsOf(timeout));
  }
  // The same of nanoseconds, to which a Duration is converted in a fiftieth of a small call.
  static Deadline FromFirstWait(int64_t timeout_ns) { return Deadline(timeout_ns, kNotYet); }
  static constexpr int64_t kInfiniteNs = std::numeric_limits<int64_t>::max();

  Deadline(const Deadline& other) : timeout_ns_(other.timeout_ns_), began_(other.began()) {}
  Deadline& operator=(const Deadline& other) {
    timeout_ns_ = other.timeout_ns_;
    began_.store(other.began(), std::memory_order_relaxed);
    return *this;
  }

  absl::Duration timeout() const { return DurationOf(timeout_ns_); }  // The whole, for messages.
  absl::Duration Remaining() const {                                  // Never negative.
    const int64_t now = Now();
    int64_t began = this->began();
    if (began == kNotYet && began_.compare_exchange_strong(began, now)) began = now;
    if (timeout_ns_ == kInfiniteNs) return absl::InfiniteDuration();
    return absl::Nanoseconds(std::max<int64_t>(timeout_ns_ - (now - began), 0));
  }
  bool Expired() const { return Remaining() == absl::ZeroDuration(); }

  // Waits for `condition`; `mutex` guards it and is held. Returns whether it has come true.
  bool Await(absl::Mutex& mutex, const absl::Condition& condition) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    while (!mutex.AwaitWithTimeout(condition, std::min(Remaining(), absl::Seconds(1)))) {
      if (Expired()) return false;
    }
    return true;
  }

  // The same, but ends early, with false, when this thread is interrupted: Interruption() then says
  // so. `mutex` is released while that is looked at.
  bool AwaitInterruptibly(absl::Mutex& mutex, const absl::Condition& condition) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Also calls `each_slice`, with `mutex` held, each time that about kInterruptInterval has passed.
  bool AwaitInterruptibly(absl::Mutex& mutex, const absl::Condition& condition,
                          absl::FunctionRef<void()> each_slice) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

 private:
  static constexpr int64_t kNotYet = std::numeric_limits<int64_t>::min();

  static int64_t Now() {  // Nanoseconds.
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  }

  // What is longer than three hundred years counts as infinite, and what is shorter than a
  // nanosecond as one. A negative timeout is kept so far from the end of the range that the time
  // that has passed can be taken from it.
  static int64_t NanosecondsOf(absl::Duration timeout) {
    const int64_t ns = absl::ToInt64Nanoseconds(timeout);
    if (ns == 0 && timeout > absl::ZeroDuration()) return 1;
    return std::max(ns, std::numeric_limits<int64_t>::min() / 2);
  }
  static absl::Duration DurationOf(int64_t ns) {
    return ns == kInfiniteNs ? absl::InfiniteDuration() : absl::Nanoseconds(ns);
  }

  Deadline(int64_t timeout_ns, int64_t began) : timeout_ns_(timeout_ns), began_(began) {}

  int64_t began() const { return began_.load(std::memory_order_relaxed); }

  int64_t timeout_ns_;
  mutable std::atomic<int64_t> began_;
};

}  // namespace syncline

#endif  // SYNCLINE_DEADLINE_H_
