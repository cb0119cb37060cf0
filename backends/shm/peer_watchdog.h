// Decides whether a peer that a rank waits for is late, has left the group, or is dead.
#ifndef SYNCLINE_BACKENDS_SHM_PEER_WATCHDOG_H_
#define SYNCLINE_BACKENDS_SHM_PEER_WATCHDOG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "backends/common/lifecycle.h"
#include "backends/common/peer_processes.h"
#include "backends/common/peer_table.h"
#include "backends/shm/failure_cell.h"
#include "backends/shm/segment_layout.h"
#include "backends/shm/wait_context.h"

namespace syncline::shm {

// Looks at what all ranks have written to the segment and at their processes; writes nothing.
// Thread-safe. Borrows all that it is made of. A waiting rank asks it every kPeerCheckInterval: see
// waiter.cc.
class PeerWatchdog {
 public:
  PeerWatchdog(const SegmentLayout& layout, const backends::PeerTable& peers,
               const backends::PeerProcesses& processes, const FailureCell& failure)
      : layout_(layout), peers_(peers), processes_(processes), failure_(failure) {}

  // Why a wait for `rank`, which may be kAnySource, must end although its condition does not hold:
  // the group's failure if there is one; a BackendError if all ranks that could make the condition
  // true have left; a NetworkError that names the dead if any rank of the group has died; a
  // TimeoutError that names the late if the deadline has passed. Else OK. The caller checks its
  // condition once more: it may have come true meanwhile.
  absl::Status CheckPeers(int rank, const WaitContext& context) const;

  // The ranks that keep a wait for `rank` from ending, and the earlier call that they have not
  // taken; as errors name them.
  backends::Lifecycle::Awaited WhoIsAwaited(int rank, const WaitContext& context) const;

  // Reports a wait for `rank` that has lasted `waited` under `notice` (see StallNotice); in the log
  // too if no lower rank waits in the same collective, which would report the same.
  void ReportStall(int rank, const WaitContext& context, absl::Duration waited,
                   int64_t notice) const;

 private:
  absl::Status CheckLeft(int rank) const;
  absl::Status CheckDead() const;
  // The TimeoutError of a wait for `rank`: who is late, and what each did last.
  absl::Status DescribeTimeout(int rank, const WaitContext& context) const;
  // The ranks that keep the wait from ending; never empty.
  std::vector<int> LateRanks(int rank, const WaitContext& context) const;
  // The ranks that have not done what a wait in a collective is for, as far as that can be told.
  std::vector<int> NotArrived(int rank, const WaitContext& context) const;
  // From these ranks on to those for which they wait, and so on: those that wait for nobody in a
  // collective. Empty if they wait for each other, as it may look for a moment.
  std::vector<int> EndsOfWaits(std::vector<int> ranks) const;
  bool IsInCollective(int rank) const;
  // The ranks for which the collective of a rank waits, and its sends and receives, if they do. Not
  // this rank.
  std::vector<int> AwaitedBy(int rank) const;
  std::vector<int> AwaitedInMessagesBy(int rank) const;
  bool CanRun(int rank) const;
  bool IsStopped(int rank) const;
  // "it is in all_reduce #5", "it is in no operation of this group, its last was barrier #4".
  std::string LastActivity(int rank) const;

  bool HasCome(int rank, uint64_t number) const;
  bool HasArrived(int rank, const WaitContext& context) const;
  // "broadcast #5": the first of what this rank has given and must keep, because of `rank`.
  std::string NeededCall(int rank, const WaitContext& context) const;
  bool LowerRankWaits(const WaitContext& context) const;

  const SegmentLayout& layout_;
  const backends::PeerTable& peers_;
  const backends::PeerProcesses& processes_;
  const FailureCell& failure_;
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_PEER_WATCHDOG_H_
