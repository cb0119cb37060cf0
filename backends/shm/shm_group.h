// One rank's handle on its group: the parts that collectives and messages share.
#ifndef SYNCLINE_BACKENDS_SHM_SHM_GROUP_H_
#define SYNCLINE_BACKENDS_SHM_SHM_GROUP_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "backends/common/peer_processes.h"
#include "backends/common/peer_table.h"
#include "backends/shm/adaptive_copier.h"
#include "backends/shm/cross_memory.h"
#include "backends/shm/failure_cell.h"
#include "backends/shm/peer_watchdog.h"
#include "backends/shm/segment_layout.h"
#include "backends/shm/waiter.h"
#include "syncline/deadline.h"
#include "syncline/op_kind.h"

namespace syncline::shm {

// Owns the peers, the layout, the failure cell, the watchdog, the waiter and what reads other
// ranks' memory; borrows the segment's memory, which must outlive it. Thread-safe, except where
// noted.
class ShmGroup {
 public:
  ShmGroup(char* memory, backends::PeerTable peers, backends::PeerProcesses processes,
           CmaPolicy cma = CmaPolicy::kOn);

  ShmGroup(const ShmGroup&) = delete;
  ShmGroup& operator=(const ShmGroup&) = delete;

  int rank() const { return rank_; }
  const backends::PeerTable& peers() const { return peers_; }
  const SegmentLayout& layout() const { return layout_; }
  RankRegion& own_region() const { return own_region_; }
  Waiter& waiter() { return waiter_; }
  FailureCell& failure_cell() { return failure_cell_; }
  const CrossMemory& cross_memory() const { return cross_memory_; }
  // Whether this rank offers a tensor to be read by CMA in an operation of `kind`, where that is
  // possible, instead of copying it by `copier`.
  bool OffersAddress(OpKind kind, size_t bytes, AdaptiveCopier& copier) const;
  // May be changed only while no thread waits.
  backends::PeerProcesses& processes() { return processes_; }

  // Joins, and returns once all ranks have joined. Requires that this rank has reserved its own
  // part of the segment. Call it before anything else but FailureCell::Fail, which may be needed to
  // tell the others that this rank cannot join. Errors: those of Waiter::Await.
  absl::Status Join(const Deadline& deadline);

  // Tells all that this rank takes part in nothing any more, because of `reason`. Peers that wait
  // for it get LeftError. Does nothing if this rank has not joined.
  void Leave(absl::string_view reason);

  // Copies `bytes` from `address` in the process of `rank`, piece by piece. False if it cannot:
  // then some may have been copied. Fails as soon as the group has failed. Call
  // FailureCell::CheckIntact after the last read.
  absl::StatusOr<bool> ReadByAddress(int rank, uint64_t address, void* to, size_t bytes,
                                     const CallContext& call);

  // Fails the group, because `rank` has written to the segment what no rank writes: a value that
  // would have this one read elsewhere. `what` says which. Returns the error, a BackendError that
  // names the rank, or the group's first failure.
  absl::Status FailDamaged(int rank, absl::string_view what);

  // The BackendError of peers that need this rank after it has left.
  absl::Status LeftError(absl::string_view reason) const;

 private:
  const backends::PeerTable peers_;
  backends::PeerProcesses processes_;
  const SegmentLayout layout_;
  const int rank_;
  RankRegion& own_region_;
  // Follows `rank_`: every call reads the first fields of both.
  FailureCell failure_cell_;
  PeerWatchdog watchdog_;
  Waiter waiter_;
  CrossMemory cross_memory_;
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_SHM_GROUP_H_
