// Helpers for tests with several ranks.
#ifndef SYNCLINE_TESTS_SUPPORT_RANKS_H_
#define SYNCLINE_TESTS_SUPPORT_RANKS_H_

#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace syncline {

// Runs body(0) ... body(size - 1), each on a thread of its own, and returns their outcomes. If they
// have not all returned within `limit`, says which have not and ends the test program.
std::vector<absl::Status> RunRanks(int size, const std::function<absl::Status(int rank)>& body,
                                   absl::Duration limit = absl::Minutes(2));

// Opens when `steps` steps have been made.
class Countdown {
 public:
  explicit Countdown(int steps) : steps_(steps) {}

  void Step();
  // Ends the test program if it does not open for a minute.
  void Wait();
  void StepAndWait() {
    Step();
    Wait();
  }

 private:
  absl::Mutex mutex_;
  int steps_ ABSL_GUARDED_BY(mutex_);  // That have not been made.
};

// A TCP port of loopback on which nobody listened a moment ago: for what cannot take port 0.
int FreePort();

}  // namespace syncline

#endif  // SYNCLINE_TESTS_SUPPORT_RANKS_H_
