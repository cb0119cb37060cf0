// A point in time at which a wait gives up.
#ifndef SYNCLINE_CORE_DEADLINE_H_
#define SYNCLINE_CORE_DEADLINE_H_

#include <time.h>

#include <algorithm>
#include <chrono>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace syncline {

// Turns one timeout into what is left of it for each of several waits in a row. Counts on the
// monotonic clock: setting the wall clock does not move it. Every operation makes one, so it reads
// the clock that costs least: it never comes too early, but up to a tick (10 ms at most) late.
class Deadline {
 public:
  explicit Deadline(absl::Duration timeout) : timeout_(timeout), began_(NextTick()) {}

  absl::Duration timeout() const { return timeout_; }  // The whole, for messages.
  absl::Duration Remaining() const {                   // Never negative.
    const absl::Duration elapsed = absl::FromChrono(Clock::now() - began_);
    return std::max(std::min(timeout_ - elapsed, timeout_), absl::ZeroDuration());
  }
  bool Expired() const { return Remaining() == absl::ZeroDuration(); }

  // Waits for `condition`; `mutex` guards it and is held. Returns whether it has come true.
  bool Await(absl::Mutex& mutex, const absl::Condition& condition) const {
    // In slices, since Abseil waits on the wall clock.
    while (!mutex.AwaitWithTimeout(condition, std::min(Remaining(), absl::Seconds(1)))) {
      if (Expired()) return false;
    }
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC

  static Clock::time_point NextTick() {
    static const Clock::duration tick = Read(&clock_getres);
    return Clock::time_point(Read(&clock_gettime) + tick);
  }
  static Clock::duration Read(int (*read)(clockid_t, timespec*)) {
    timespec time;
    read(CLOCK_MONOTONIC_COARSE, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }

  absl::Duration timeout_;
  Clock::time_point began_;
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_DEADLINE_H_
