// Finds out which ranks are at fault when an operation fails: for backends whose transport only
// says that a connection broke or that time is up.
#ifndef SYNCLINE_BACKENDS_COMMON_FAILURE_REPORT_H_
#define SYNCLINE_BACKENDS_COMMON_FAILURE_REPORT_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "backends/common/call.h"
#include "backends/common/roster.h"
#include "core/store/store.h"

namespace syncline {

// What one rank knows when its operation fails.
struct Failure {
  std::string operation;            // "all_reduce #5 (float32, 10 elements, sum)".
  std::vector<Call> under_way;      // All of this rank, the failed one first.
  std::string idle;                 // What this rank told by TellIdle before, if it did.
  std::vector<int> awaited;         // The other ranks that the operation needs.
  std::map<int, std::string> left;  // Of all ranks: those that have taken their leave, and why;
  std::vector<int> lost;            // and those whose connection broke without.
  absl::Status cause;               // What the transport said: kTimeout, or else kNetwork.
  absl::Duration timeout = absl::ZeroDuration();  // Of the operation.
  absl::Duration elapsed = absl::ZeroDuration();
};

// Ranks that fail tell each other so through the store. A rank that stays silent, or whose process
// is gone, is to blame. Thread-safe.
class FailureReporter {
 public:
  // How long ranks wait for each other's reports, and how long a call takes at most, even if the
  // store never answers.
  static constexpr absl::Duration kGrace = absl::Milliseconds(500);
  static constexpr absl::Duration kBound = absl::Seconds(1);

  FailureReporter(std::shared_ptr<Store> store, Roster roster);

  // Publishes that this rank has failed, and why.
  void Tell(const Failure& failure) const;

  // Publishes that this rank is in no operation, though the group is broken. `what` completes what
  // its peers say of it: "it is in no operation of this group, its last was ...".
  void TellIdle(const std::string& what) const;

  // Tells, waits until the ranks that matter have reported or kGrace is over, and returns the
  // error for the user, whose kind is that of the first cause. Requires !failure.cause.ok().
  absl::Status Explain(const Failure& failure) const;

 private:
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<const Roster> roster_;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_COMMON_FAILURE_REPORT_H_
