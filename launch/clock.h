// Time as the agent sees it, so that tests can move it by hand.
#ifndef SYNCLINE_LAUNCH_CLOCK_H_
#define SYNCLINE_LAUNCH_CLOCK_H_

#include <ctime>

#include "absl/time/time.h"

namespace syncline::launch {

class Clock {
 public:
  virtual ~Clock() = default;

  // Never goes back. The epoch is arbitrary: only differences mean something.
  virtual absl::Time Now() const = 0;
};

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
