// Where the ranks of the backends' suite run: as threads of one process, or as processes of which
// this is one, such as those that mpirun has started.
#ifndef SYNCLINE_TESTS_BACKENDS_SUITE_RANKS_H_
#define SYNCLINE_TESTS_BACKENDS_SUITE_RANKS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "syncline/store.h"
#include "tests/support/ranks.h"

namespace syncline {

// The tests are written once for both. As processes, all ranks run the same tests in one order, and
// so make the same stores, runs and countdowns.
class SuiteRanks {
 public:
  // Makes this process rank `rank` of `size`, which meet in `store`. Call it before the tests.
  static void UseProcesses(std::shared_ptr<Store> store, int rank, int size);

  // An empty store for one group of ranks, the same for all of them.
  static std::shared_ptr<Store> NewStore();

  // Runs body(0) ... body(count - 1) and returns the outcomes of those that ran here, once all of
  // them have returned, wherever they run.
  static std::vector<absl::Status> Run(int count,
                                       const std::function<absl::Status(int rank)>& body);
};

// Opens when `steps` steps have been made, by whatever rank.
class SuiteCountdown {
 public:
  explicit SuiteCountdown(int steps);

  void Step();
  // Ends the test program if it does not open for a minute.
  void Wait();
  void StepAndWait() {
    Step();
    Wait();
  }

 private:
  Countdown local_;  // Of ranks that are threads.
  const int steps_;
  std::shared_ptr<Store> store_;  // Of ranks that are processes; else null.
};

}  // namespace syncline

#endif  // SYNCLINE_TESTS_BACKENDS_SUITE_RANKS_H_
