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

// Whether the rank has come to the collective that this one waits in, or waits before it. A message
// has no such entry: there every rank counts as arrived except the awaited one.
bool PeerWatchdog::HasEntered(int rank, const WaitContext& context) const {
  return layout_.entry_slot(rank, context.number).number() >= context.number ||
         layout_.region(rank).entering_number.load(std::memory_order_acquire) >= context.number;
}

// Whether the rank has done what the wait is for, as far as that can be told of any rank.
bool PeerWatchdog::HasArrived(int rank, const WaitContext& context) const {
  if (context.counter == nullptr) return HasEntered(rank, context);
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
  return {peers_.NumbersOf(late), NeededCall(late[0], context)};
}

std::vector<int> PeerWatchdog::LateRanks(int rank, const WaitContext& context) const {
  std::vector<int> late = context.number > 0 ? LateInCollective(rank, context) : std::vector<int>();
  if (context.number == 0) {
    for (int other = 0; other < layout_.size(); ++other) {
      if (other != peers_.rank() && (rank == kAnySource || rank == other)) late.push_back(other);
    }
  }
  if (!late.empty()) return late;
  // All have arrived. The awaited rank may itself wait for one that was stopped on the way.
  for (int other = 0; other < layout_.size(); ++other) {
    if (other != peers_.rank() && IsStopped(other)) late.push_back(other);
  }
  if (late.empty()) late.push_back(rank);
  return late;
}

std::vector<int> PeerWatchdog::LateInCollective(int rank, const WaitContext& context) const {
  std::vector<int> asked, late;
  if (context.takes_from_one) {
    if (layout_.entry_slot(rank, context.number).number() < context.number) asked.push_back(rank);
  } else {
    for (int other = 0; other < layout_.size(); ++other) {
      if (other != peers_.rank() && !HasArrived(other, context)) asked.push_back(other);
    }
  }
  for (size_t i = 0; i < asked.size(); ++i) {
    bool waits = false;
    for (int other : IsStopped(asked[i]) ? std::vector<int>() : AwaitedBy(asked[i], context)) {
      waits = true;
      if (std::count(asked.begin(), asked.end(), other) == 0) asked.push_back(other);
    }
    if (!waits) late.push_back(asked[i]);
  }
  std::sort(late.begin(), late.end());
  return late;
}

std::vector<int> PeerWatchdog::AwaitedBy(int rank, const WaitContext& context) const {
  std::vector<int> awaited;
  if (!layout_.has_joined(rank)) return awaited;
  const RankRegion& region = layout_.region(rank);
  const uint64_t finished = region.collectives_finished.load(std::memory_order_acquire);
  const bool is_in_collective = LastEntered(rank) > finished;
  const int other = region.awaits.load(std::memory_order_relaxed) - 1;
  if (is_in_collective && other >= 0) {
    if (other < layout_.size() && other != peers_.rank()) awaited.push_back(other);
    return awaited;
  }
  // It may have ended the collective that it is to settle, and had no entries to compare.
  if (is_in_collective || context.counter != &RankRegion::collectives_settled ||
      finished < context.needed_number) {
    return awaited;
  }
  for (int absent = 0; absent < layout_.size(); ++absent) {
    if (absent != rank && absent != peers_.rank() &&
        layout_.entry_slot(absent, context.needed_number).number() < context.needed_number) {
      awaited.push_back(absent);
    }
  }
  return awaited;
}

uint64_t PeerWatchdog::LastEntered(int rank) const {
  const RankRegion& region = layout_.region(rank);
  const uint64_t finished = region.collectives_finished.load(std::memory_order_acquire);
  // Pairs with the release store in EntryRing::NoteWaiting.
  const bool waits_before = region.entering_number.load(std::memory_order_acquire) == finished + 1;
  const bool is_in_next = layout_.entry_slot(rank, finished + 1).number() == finished + 1;
  return finished + (waits_before || is_in_next ? 1 : 0);
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
    if (HasEntered(other, context) && !has_finished) return true;
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
