// A monotonic clock as an interface, so that tests can move it by hand.
#ifndef SYNCLINE_LAUNCH_CLOCK_H_
#define SYNCLINE_LAUNCH_CLOCK_H_

#include <ctime>

#include "absl/time/time.h"

namespace syncline::launch {

// Thread-safe in production; a test's fake need not be.
class Clock {
 public:
  virtual ~Clock() = default;

  // Never decreases. The epoch is arbitrary: only differences have a meaning.
  virtual absl::Time Now() const = 0;
};

// CLOCK_MONOTONIC. Thread-safe.
class MonotonicClock final : public Clock {
 public:
  absl::Time Now() const override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return absl::TimeFromTimespec(now);
  }
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_CLOCK_H_
