#include "backends/shm/shm_group.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::shm {

ShmGroup::ShmGroup(char* memory, backends::PeerTable peers, backends::PeerProcesses processes,
                   CmaPolicy cma)
    : peers_(std::move(peers)),
      processes_(std::move(processes)),
      layout_(memory, peers_.size()),
      rank_(peers_.rank()),
      own_region_(layout_.region(rank_)),
      failure_cell_(layout_, peers_),
      watchdog_(layout_, peers_, processes_, failure_cell_),
      waiter_(layout_, peers_, failure_cell_, watchdog_),
      cross_memory_(layout_, peers_, cma) {}

absl::Status ShmGroup::Join(const Deadline& deadline) {
  RankRegion& own = layout_.region(rank_);
  if (!waiter_.has_membarrier()) own.needs_fence.store(1);
  CPU_ZERO(&own.cores);
  sched_getaffinity(0, sizeof(own.cores), &own.cores);
  cross_memory_.Publish();
  JoinFlag& own_flag = layout_.join_flag(rank_);
  // Pairs with the acquire load in has_joined: what stands above is valid for all that see it.
  own_flag.joined.store(1, std::memory_order_release);
  waiter_.Notify(own_flag.event);
  // For messages: joining is no call of the user.
  const Collective barrier = Collective::Barrier();
  CallContext joining;
  joining.collective = &barrier;
  bool needs_fence = false;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int rank = 0; rank < layout_.size(); ++rank) {
    SYNCLINE_RETURN_IF_ERROR(waiter_.Await(layout_.join_flag(rank).event, rank, {joining, deadline},
                                           [&] { return layout_.has_joined(rank); }));
    const RankRegion& region = layout_.region(rank);
    if (region.needs_fence.load() != 0) needs_fence = true;
    CPU_OR(&cores, &cores, &region.cores);
  }
  // All ranks come to the same, as all have read the same regions.
  waiter_.Configure(layout_.size() <= CPU_COUNT(&cores), needs_fence);
  cross_memory_.Probe();
  return absl::OkStatus();
}

void ShmGroup::Leave(absl::string_view reason) {
  if (!layout_.has_joined(rank_)) return;
  RankRegion& own = layout_.region(rank_);
  std::strncpy(own.leave_reason, std::string(reason).c_str(), sizeof(own.leave_reason) - 1);
  // Pairs with the acquire load in PeerWatchdog::CheckLeft.
  own.left.store(1, std::memory_order_release);
  base::WakeAll(own.collective_event);
  base::WakeAll(own.progress_event);
  base::WakeAll(own.rest_event);
  base::WakeAll(own.message_event);
}

bool ShmGroup::OffersAddress(OpKind kind, size_t bytes, AdaptiveCopier& copier) const {
  if (!cross_memory_.is_readable()) return false;
  const size_t always = layout_.sizes().cma;
  if (always > 0) return bytes >= always;
  return CmaMayPay(kind, bytes, waiter_.is_oversubscribed()) && copier.PrefersCma();
}

absl::StatusOr<bool> ShmGroup::ReadByAddress(int rank, uint64_t address, void* to, size_t bytes,
                                             const CallContext& call) {
  if (!cross_memory_.CanRead(rank)) return false;
  for (size_t done = 0; done < bytes;) {
    const size_t taken = std::min(bytes - done, CrossMemory::kMaxBytes);
    if (!cross_memory_.Read(rank, address + done, static_cast<char*>(to) + done, taken).ok()) {
      return false;
    }
    done += taken;
    if (done < bytes) SYNCLINE_RETURN_IF_ERROR(failure_cell_.CheckIntact(call));
  }
  return true;
}

absl::Status ShmGroup::FailDamaged(int rank, absl::string_view what) {
  const absl::Status damaged = BackendError(
      absl::StrCat(peers_.Describe(rank), " has written ", what,
                   " to shared memory, which is out of range: its memory is damaged, or it runs "
                   "another version of Syncline"));
  return failure_cell_.Fail(WithRanks(damaged, {peers_.NumberOf(rank)}));
}

absl::Status ShmGroup::LeftError(absl::string_view reason) const {
  return WithRanks(
      BackendError(absl::StrCat(peers_.Describe(rank_), " has left the group: ", reason)),
      {peers_.NumberOf(rank_)});
}

}  // namespace syncline::shm
