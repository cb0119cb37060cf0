// A point in time at which a wait gives up.
#ifndef SYNCLINE_CORE_DEADLINE_H_
#define SYNCLINE_CORE_DEADLINE_H_

#include <algorithm>
#include <chrono>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace syncline {

// Turns one timeout into what is left of it for each of several waits in a row. Counts on the
// monotonic clock: setting the wall clock does not move it.
class Deadline {
 public:
  explicit Deadline(absl::Duration timeout) : timeout_(timeout), began_(Clock::now()) {}

  absl::Duration timeout() const { return timeout_; }  // The whole, for messages.
  absl::Duration Remaining() const {                   // Never negative.
    return std::max(timeout_ - absl::FromChrono(Clock::now() - began_), absl::ZeroDuration());
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
  using Clock = std::chrono::steady_clock;

  absl::Duration timeout_;
  Clock::time_point began_;
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_DEADLINE_H_
