#include "backends/shm/peer_watchdog.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "backends/common/call_description.h"
#include "backends/common/stall_reporter.h"
#include "backends/shm/last_call.h"
#include "core/base/stall_file.h"
#include "syncline/backend.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::shm {

absl::Status PeerWatchdog::CheckPeers(int rank, const WaitContext& context) const {
  // In this order: a failure that another rank has reported stays the first cause; and a rank that
  // has left was free to end its process afterwards, so leaving explains more than death.
  SYNCLINE_RETURN_IF_ERROR(failure_.failure());
  SYNCLINE_RETURN_IF_ERROR(CheckLeft(rank));
  SYNCLINE_RETURN_IF_ERROR(CheckDead());
  return context.deadline.Expired() ? DescribeTimeout(rank, context) : absl::OkStatus();
}

absl::Status PeerWatchdog::CheckLeft(int rank) const {
  std::vector<int> left;
  std::vector<std::string> reasons;
  for (int other = 0; other < layout_.size(); ++other) {
    if (other == peers_.rank() || (rank != kAnySource && rank != other)) continue;
    if (!layout_.has_joined(other)) return absl::OkStatus();
    const RankRegion& region = layout_.region(other);
    // Pairs with the release store in ShmGroup::Leave, which follows the reason.
    if (region.left.load(std::memory_order_acquire) == 0) return absl::OkStatus();
    // Of another process, which may be broken: it need not end with a zero.
    const absl::string_view reason(region.leave_reason,
                                   strnlen(region.leave_reason, sizeof(region.leave_reason)));
    left.push_back(peers_.NumberOf(other));
    reasons.push_back(absl::StrCat(peers_.Describe(other), " has left the group: ", reason));
  }
  return WithRanks(BackendError(absl::StrCat(rank == kAnySource ? "nobody is left to send: " : "",
                                             absl::StrJoin(reasons, "; "))),
                   std::move(left));
}

absl::Status PeerWatchdog::CheckDead() const {
  // All ranks count, not only the awaited one, which may itself wait for the dead. Ranks that have
  // left were free to end.
  return processes_.Check([&](int rank) {
    return !layout_.has_joined(rank) ||
           layout_.region(rank).left.load(std::memory_order_acquire) == 0;
  });
}

absl::Status PeerWatchdog::DescribeTimeout(int rank, const WaitContext& context) const {
  const std::string after = absl::FormatDuration(context.deadline.timeout());
  const std::vector<int> ranks = LateRanks(rank, context);
  std::vector<std::string> late;
  if (rank == kAnySource) late.push_back(absl::StrCat("not complete after ", after));
  for (int other : ranks) {
    const std::string needed = NeededCall(other, context);
    late.push_back(absl::StrCat(peers_.Describe(other), " has not arrived after ", after, "; ",
                                LastActivity(other), needed.empty() ? "" : "; it has not taken ",
                                needed));
  }
  return WithRanks(TimeoutError(absl::StrJoin(late, "; ")), peers_.NumbersOf(ranks));
}

// Whether the rank has come to that collective, or waits before it.
bool PeerWatchdog::HasCome(int rank, uint64_t number) const {
  return layout_.entry_slot(rank, number).number() >= number ||
         layout_.region(rank).entering_number.load(std::memory_order_acquire) >= number;
}

// Whether the rank has done what the wait is for, as far as that can be told of any rank.
bool PeerWatchdog::HasArrived(int rank, const WaitContext& context) const {
  if (context.counter == nullptr) return HasCome(rank, context.number);
  const RankRegion& region = layout_.region(rank);
  return (region.*context.counter).load(std::memory_order_acquire) >= context.needed_number;
}

std::string PeerWatchdog::NeededCall(int rank, const WaitContext& context) const {
  if (context.needed_number == 0) return "";
  const uint64_t first =
      std::max(context.needed_number,
               layout_.region(rank).collectives_finished.load(std::memory_order_acquire) + 1);
  const EntrySlot& slot = layout_.entry_slot(peers_.rank(), first);
  if (slot.number() != first) return "";
  return backends::CallDescription(slot.content.fingerprint).ShortName();
}

backends::Lifecycle::Awaited PeerWatchdog::WhoIsAwaited(int rank,
                                                        const WaitContext& context) const {
  const std::vector<int> late = LateRanks(rank, context);
  std::string needed = NeededCall(late[0], context);
  for (int other : late) {
    if (NeededCall(other, context) != needed) needed.clear();
  }
  return {peers_.NumbersOf(late), needed};
}

std::vector<int> PeerWatchdog::LateRanks(int rank, const WaitContext& context) const {
  std::vector<int> late;
  if (context.number > 0) {
    late = EndsOfWaits(NotArrived(rank, context));
  } else {
    for (int other = 0; other < layout_.size(); ++other) {
      if (other != peers_.rank() && (rank == kAnySource || rank == other)) late.push_back(other);
    }
  }
  if (!late.empty()) return late;
  // All have arrived. The awaited rank may itself wait for one that was stopped on the way.
  for (int other = 0; other < layout_.size(); ++other) {
    if (other != peers_.rank() && IsStopped(other)) late.push_back(other);
  }
  if (late.empty() && context.number > 0) late = EndsOfWaits({rank});
  if (late.empty()) late.push_back(rank);
  return late;
}

std::vector<int> PeerWatchdog::NotArrived(int rank, const WaitContext& context) const {
  if (context.takes_from_one) {
    const bool has_come = layout_.entry_slot(rank, context.number).number() >= context.number;
    return has_come ? std::vector<int>() : std::vector<int>{rank};
  }
  std::vector<int> absent;
  for (int other = 0; other < layout_.size(); ++other) {
    if (other != peers_.rank() && !HasArrived(other, context)) absent.push_back(other);
  }
  return absent;
}

std::vector<int> PeerWatchdog::EndsOfWaits(std::vector<int> ranks) const {
  std::vector<int> ends;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const bool is_in_collective = IsInCollective(ranks[i]);
    const std::vector<int> awaited =
        is_in_collective ? AwaitedBy(ranks[i]) : AwaitedInMessagesBy(ranks[i]);
    // A rank with a receive in the background may be late by itself.
    if (awaited.empty() || !is_in_collective) ends.push_back(ranks[i]);
    for (int other : awaited) {
      if (std::count(ranks.begin(), ranks.end(), other) == 0) ranks.push_back(other);
    }
  }
  std::sort(ends.begin(), ends.end());
  return ends;
}

bool PeerWatchdog::IsInCollective(int rank) const {
  const RankRegion& region = layout_.region(rank);
  const uint64_t number = region.collectives_finished.load(std::memory_order_acquire) + 1;
  // Pairs with the release store in EntryRing::NoteWaiting.
  return layout_.entry_slot(rank, number).number() == number ||
         region.entering_number.load(std::memory_order_acquire) == number;
}

std::vector<int> PeerWatchdog::AwaitedInMessagesBy(int rank) const {
  const int32_t awaits = layout_.region(rank).message_awaits.load(std::memory_order_relaxed);
  // Of another process, which may be broken.
  if (!CanRun(rank) || awaits <= 0 || awaits > layout_.size() || awaits - 1 == peers_.rank()) {
    return {};
  }
  return {awaits - 1};
}

std::vector<int> PeerWatchdog::AwaitedBy(int rank) const {
  const RankRegion& region = layout_.region(rank);
  const uint64_t number = region.collectives_finished.load(std::memory_order_acquire) + 1;
  const EntrySlot& slot = layout_.entry_slot(rank, number);
  const bool has_entered = slot.number() == number;
  // Of another process, which may be broken.
  const int32_t awaits = region.awaits.load(std::memory_order_relaxed);
  if (!CanRun(rank) || awaits <= 0 || awaits > layout_.size()) return {};
  std::vector<int> awaited;
  for (int other = 0; other < layout_.size(); ++other) {
    if (other == rank || other == peers_.rank()) continue;
    // One that waits for all says only for which it does so at present.
    const bool is_awaited =
        other == awaits - 1 || (has_entered && slot.meets() && !HasCome(other, number));
    // One that has ended that collective owes it nothing: what stands there is of a rank that
    // cannot run.
    if (is_awaited &&
        layout_.region(other).collectives_finished.load(std::memory_order_acquire) < number) {
      awaited.push_back(other);
    }
  }
  return awaited;
}

bool PeerWatchdog::CanRun(int rank) const {
  const base::Liveness liveness = peers_.LivenessOf(rank);
  return liveness != base::Liveness::kStopped && liveness != base::Liveness::kDead;
}

bool PeerWatchdog::IsStopped(int rank) const {
  return peers_.LivenessOf(rank) == base::Liveness::kStopped;
}

std::string PeerWatchdog::LastActivity(int rank) const {
  if (IsStopped(rank)) return "its process is stopped";
  if (!layout_.has_joined(rank)) return "it is joining the group";
  const RankRegion& region = layout_.region(rank);
  const uint64_t finished = region.collectives_finished.load(std::memory_order_acquire);
  const EntrySlot& slot = layout_.entry_slot(rank, finished + 1);
  if (slot.number() == finished + 1) {
    return absl::StrCat("it is in ",
                        backends::CallDescription(slot.content.fingerprint).ShortName());
  }
  // Pairs with the release store in EntryRing::NoteWaiting.
  if (region.entering_number.load(std::memory_order_acquire) == finished + 1) {
    return absl::StrCat("it is in ", NameOf(region.entering_call));
  }
  if (region.messages_in_flight.value() > 0) {
    return absl::StrCat("it is in ", NameOf(region.last_message));
  }
  const std::string last = NameOf(region.last_call);
  return absl::StrCat(
      "it is in no operation of this group",
      last.empty() ? " and has been in none" : absl::StrCat(", its last was ", last));
}

bool PeerWatchdog::LowerRankWaits(const WaitContext& context) const {
  for (int other = 0; context.number > 0 && other < peers_.rank(); ++other) {
    const bool has_finished = layout_.region(other).collectives_finished.load() >= context.number;
    if (HasCome(other, context.number) && !has_finished) return true;
  }
  return false;
}

void PeerWatchdog::ReportStall(int rank, const WaitContext& context, absl::Duration waited,
                               int64_t notice) const {
  base::Stall stall;
  stall.rank = peers_.NumberOf(peers_.rank());
  stall.operation = context.Describe().ToString();
  const std::vector<int> late = LateRanks(rank, context);
  stall.missing = peers_.NumbersOf(late);
  stall.waited = waited;
  std::map<std::string, std::vector<int>> missing;
  for (int other : late) missing[LastActivity(other)].push_back(other);
  stall.text = backends::StallText(peers_, stall.operation, waited, missing);
  base::ReportStall(notice, stall, !LowerRankWaits(context));
}

}  // namespace syncline::shm
