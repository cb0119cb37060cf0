// A point in time at which a wait gives up.
#ifndef SYNCLINE_CORE_DEADLINE_H_
#define SYNCLINE_CORE_DEADLINE_H_

#include <algorithm>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace syncline {

// Turns one timeout into what is left of it for each of several waits in a row.
class Deadline {
 public:
  explicit Deadline(absl::Duration timeout) : timeout_(timeout), at_(absl::Now() + timeout) {}

  absl::Time at() const { return at_; }
  absl::Duration timeout() const { return timeout_; }  // The whole, for messages.
  absl::Duration Remaining() const {                   // Never negative.
    return std::max(at_ - absl::Now(), absl::ZeroDuration());
  }
  bool Expired() const { return Remaining() == absl::ZeroDuration(); }

 private:
  absl::Duration timeout_;
  absl::Time at_;
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_DEADLINE_H_
