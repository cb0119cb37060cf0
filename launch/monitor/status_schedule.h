// Decides when a node writes its status to the job's store.
#ifndef SYNCLINE_LAUNCH_MONITOR_STATUS_SCHEDULE_H_
#define SYNCLINE_LAUNCH_MONITOR_STATUS_SCHEDULE_H_

#include <algorithm>

#include "absl/time/time.h"
#include "launch/clock.h"

namespace syncline::launch {

// Once a second, and sooner after a change, but never twice within 200 ms. Not thread-safe.
class StatusSchedule {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(1);
  static constexpr absl::Duration kBetweenChanges = absl::Milliseconds(200);

  explicit StatusSchedule(const Clock& clock) : clock_(clock) {}  // Must outlive it.

  void Changed() { next_ = std::min(next_, last_ + kBetweenChanges); }
  absl::Time next() const { return next_; }  // When it is to be written.
  void Written() {
    last_ = clock_.Now();
    next_ = last_ + kInterval;
  }

 private:
  const Clock& clock_;
  absl::Time last_ = absl::InfinitePast();
  absl::Time next_ = absl::InfinitePast();  // At once.
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_MONITOR_STATUS_SCHEDULE_H_
