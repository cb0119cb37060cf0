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
  std::vector<int> late = LateRanks(rank, context);
  // Others may come later, and this rank still have what it needs.
  if (context.call.step_of != nullptr && !context.call.meets && context.counter == nullptr &&
      !HasEntered(rank, context)) {
    late = {rank};
  }
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
  std::vector<int> late;
  for (int other = 0; other < layout_.size(); ++other) {
    if (other != peers_.rank() && !HasArrived(other, context)) late.push_back(other);
  }
  // A rank that has ended a collective, and not compared it, waits for the entries of those that
  // have not come.
  const auto has_finished = [&](int other) {
    return layout_.region(other).collectives_finished.load(std::memory_order_acquire) >=
           context.needed_number;
  };
  if (context.counter == &RankRegion::collectives_settled &&
      !std::all_of(late.begin(), late.end(), has_finished)) {
    late.erase(std::remove_if(late.begin(), late.end(), has_finished), late.end());
  }
  // Nor are those at fault that wait for one of the others, in a collective to which it has not
  // come.
  std::vector<Position> positions;
  for (int other : late) positions.push_back(PositionOf(other));
  std::vector<int> at_fault;
  for (size_t i = 0; i < late.size(); ++i) {
    const bool waits_for_another =
        positions[i].is_in_collective &&
        std::any_of(positions.begin(), positions.end(), [&](const Position& position) {
          return position.entered < positions[i].entered;
        });
    if (!waits_for_another || IsStopped(late[i])) at_fault.push_back(late[i]);
  }
  // A rank that takes from one other needs no third, unless that one does.
  const EntrySlot& own = layout_.entry_slot(peers_.rank(), context.number);
  const bool takes_from_one =
      context.counter == nullptr && own.number() == context.number && !own.meets();
  if (takes_from_one && std::count(at_fault.begin(), at_fault.end(), rank) > 0) return {rank};
  return at_fault;
}

PeerWatchdog::Position PeerWatchdog::PositionOf(int rank) const {
  if (!layout_.has_joined(rank)) return {0, false};
  const RankRegion& region = layout_.region(rank);
  const uint64_t finished = region.collectives_finished.load(std::memory_order_acquire);
  const bool is_in_collective =
      layout_.entry_slot(rank, finished + 1).number() == finished + 1 ||
      // Pairs with the release store in EntryRing::NoteWaiting.
      region.entering_number.load(std::memory_order_acquire) == finished + 1;
  return {finished + (is_in_collective ? 1 : 0), is_in_collective};
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
