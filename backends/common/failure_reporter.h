// Finds out which ranks are at fault when an operation fails, for backends whose transport only
// says that a connection broke or that time is up.
#ifndef SYNCLINE_BACKENDS_COMMON_FAILURE_REPORTER_H_
#define SYNCLINE_BACKENDS_COMMON_FAILURE_REPORTER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "backends/common/call_description.h"
#include "backends/common/peer_table.h"
#include "syncline/error_origin.h"
#include "syncline/store.h"

namespace syncline::backends {

// What one rank knows when its operation fails.
struct Failure {
  std::string operation;                   // "all_reduce #5 (float32, 10 elements, sum)".
  ErrorOrigin::Operation call;             // The same; without a name if it is none of the user's.
  std::vector<CallDescription> under_way;  // All calls of this rank, the failed one first.
  std::string idle;                        // What this rank said in ReportIdle before, if it did.
  std::vector<int> awaited;                // The other ranks that the operation waits for.
  std::vector<int> waits_for;              // Those for which alone it waited when it failed, if it
                                           // is known; else empty.
  std::string awaited_in;                  // The earlier call in which it does; empty: its own.
  std::map<int, std::string> left;  // The ranks of the group that sent a leave message, with their
                                    // reasons.
  std::vector<int> lost;            // The ranks whose connection broke without one.
  std::map<int, std::string> given_up;  // Of those, whose this rank has ended itself, and why: "not
                                        // answered for 5s".
  absl::Status cause;                   // What the transport said: kTimeout, or else kNetwork.
  absl::Duration timeout = absl::ZeroDuration();  // The operation's.
  absl::Duration elapsed = absl::ZeroDuration();
};

// One rank's access to the failure reports of its group, which ranks exchange through the store
// under the keys "report/RANK". A rank that does not report, or whose process has ended, is at
// fault.
//
// Thread-safe. It shares the store, and keeps its own copy of the table. No method takes longer
// than kBound, even if the store never answers: the store is asked on a thread that is left behind.
class FailureReporter {
 public:
  // How long ranks wait for each other's reports, and how long a method takes at most.
  static constexpr absl::Duration kGrace = absl::Seconds(1);
  static constexpr absl::Duration kBound = absl::Seconds(3);

  FailureReporter(std::shared_ptr<Store> store, PeerTable peers);

  // Publishes that this rank has failed, and why. An error of the store is ignored.
  void Report(const Failure& failure) const;

  // Publishes that this rank is in no operation though the group is broken, so that peers do not
  // take its silence for death. `what` completes what they say of it: "it is in no operation of
  // this group, its last was ...". An error of the store is ignored.
  void ReportIdle(const std::string& what) const;

  // Reports, waits until the ranks that matter have reported or kGrace is over, and returns the
  // error for the user, which names the ranks at fault, also as its ErrorOrigin, and has the kind
  // of the first cause: kNetwork for a rank that died or is presumed lost, kTimeout where ranks
  // only came late, or the kind that another rank reported. Requires !failure.cause.ok().
  absl::Status Diagnose(const Failure& failure) const;

 private:
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<const PeerTable> peers_;
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_FAILURE_REPORTER_H_
