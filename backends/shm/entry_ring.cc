#include "backends/shm/entry_ring.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backends/shm/last_call.h"
#include "syncline/check.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::shm {
namespace {

// What RankRegion::agreements says: the owner's entries up to `compared` agree with those of the
// other rank, and of those after it the ones whose bits are set, from the next one on.
struct Agreements {
  static constexpr int kBits = 32;
  static_assert(kBits >= kPairEntrySlots, "there are no more entries than these to compare");

  uint64_t ToWord() const { return (compared & 0xffffffff) | agreed << kBits; }
  // Of `compared` the word has the last bits: it is taken to be as near to `number` as can be.
  static Agreements Near(uint64_t number, uint64_t word) {
    const auto difference = static_cast<int32_t>(static_cast<uint32_t>(word - number));
    return {number + difference, word >> kBits};
  }

  uint64_t compared, agreed;
};

}  // namespace

absl::Status EntryRing::AwaitSlotSlowly(bool meets, const WaitContext& context) {
  looked_ = number_;
  // The collective whose slot this one takes.
  const uint64_t last = number_ > slots_ ? number_ - slots_ : 0;
  // Of two ranks, the one that takes data compares; this one only if the other has not in time.
  const bool leaves_it = layout_.size() == 2 && !meets;
  if (leaves_it) LookAtOther();
  SYNCLINE_RETURN_IF_ERROR(SettleWhatIsThere(leaves_it ? last : number_ - 1, context.call));
  if (last == 0) return absl::OkStatus();
  RestIfAheadBy(&RankRegion::collectives_settled, last);
  if (leaves_it) LookAtOther();
  if (compared_ < last) {
    // First this rank settles what others may wait for. If it waited for them first, two ranks
    // could wait for each other.
    NoteWaiting(context.call);
    for (int r = 0; r < layout_.size(); ++r) {
      if (r == rank()) continue;
      const WaitContext of_entry = {context.call, context.deadline, last, last};
      SYNCLINE_RETURN_IF_ERROR(
          group_.waiter().Await(layout_.region(r).collective_event, r, of_entry,
                                [&] { return SlotOf(r, last).number() == last; }));
    }
  }
  // What the look at the other has brought too: while this rank waits, others may wait for that.
  if (settled_ < last) SYNCLINE_RETURN_IF_ERROR(SettleWhatIsThere(last, context.call));
  if (others_settled_ < last) {
    SYNCLINE_ASSIGN_OR_RETURN(others_settled_,
                              AwaitOthers(&RankRegion::collectives_settled, last, context));
    if (leaves_it) LookAtOther();  // On the same line, so that the next call need not.
  }
  return absl::OkStatus();
}

absl::Status EntryRing::AwaitFinished(uint64_t number, const WaitContext& context) {
  RestIfAheadBy(&RankRegion::collectives_finished, number);
  SYNCLINE_ASSIGN_OR_RETURN(others_finished_,
                            AwaitOthers(&RankRegion::collectives_finished, number, context));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> EntryRing::AwaitOthers(Counter counter, uint64_t value,
                                                const WaitContext& context) {
  WaitContext waiting = context;
  waiting.needed_number = value;
  waiting.counter = counter;
  uint64_t least = number_;
  for (int r = 0; r < layout_.size(); ++r) {
    if (r == rank()) continue;
    RankRegion& region = layout_.region(r);
    // Pairs with the release stores in Finish and PublishSettled: that rank's reads are over.
    const auto has_come = [&] {
      return (region.*counter).load(std::memory_order_acquire) >= value;
    };
    // A rank that is only just far enough is slower than this one. To look at its counter in every
    // collective would take the line away from it each time, so it is given time for some more.
    if ((region.*counter).load(std::memory_order_acquire) < value + kSettleInterval) {
      group_.waiter().Pause();
    }
    if (!has_come()) {
      NoteWaiting(context.call);
      SYNCLINE_RETURN_IF_ERROR(group_.waiter().Await(region.progress_event, r, waiting, has_come));
    }
    least = std::min(least, (region.*counter).load(std::memory_order_acquire));
  }
  return least;
}

// Until it has finished half of the calls since, so that there is room for some more. It comes so
// far without this rank, which has done its part in them.
void EntryRing::RestIfAheadBy(Counter counter, uint64_t value) {
  const uint64_t enough = value + (number_ - 1 - value) / 2;
  for (int r = 0; r < layout_.size(); ++r) {
    RankRegion& region = layout_.region(r);
    const auto is_ready = [&] {
      return (region.*counter).load(std::memory_order_acquire) >= value;
    };
    if (r != rank() && !is_ready() && !group_.waiter().Rest(region, enough, is_ready)) return;
  }
}

void EntryRing::NoteWaiting(const CallContext& call) {
  RecordCall(call, own_.entering_call);
  own_.entering_number.store(number_, std::memory_order_release);
}

absl::Status EntryRing::AwaitEntryOf(int rank, const WaitContext& context) {
  const EntrySlot& slot = SlotOf(rank, number_);
  RankRegion& region = layout_.region(rank);
  // Equality is enough: that rank uses the slot again once this one has settled the collective.
  const auto is_there = [&] { return slot.number() == number_; };
  const bool may_doze = group_.waiter().is_oversubscribed() && context.takes_from_one &&
                        context.call.step_of != nullptr;
  if (!may_doze) {
    if (they_give_ && HasRoot(context.call.collective->kind)) LetGoAhead(rank);
    SYNCLINE_RETURN_IF_ERROR(
        group_.waiter().AwaitEntry(region.collective_event, rank, context, is_there));
    they_give_ = !slot.meets();
    return absl::OkStatus();
  }
  if (others_lead_) group_.waiter().Doze(region, is_there);
  SYNCLINE_RETURN_IF_ERROR(group_.waiter().Await(region.collective_event, rank, context, is_there));
  others_lead_ = SlotOf(rank, number_ + kLead).number() == number_ + kLead;
  return absl::OkStatus();
}

void EntryRing::LetGoAhead(int rank) {
  if (until_pause_ > 0) {
    --until_pause_;
    return;
  }
  for (int i = 0; i < kPausesToLetGoAhead; ++i) group_.waiter().Pause();
  // Not the next: to that one it may have come to take data of this rank, for which it then waits.
  const uint64_t further = number_ + 2;
  until_pause_ = SlotOf(rank, further).number() == further ? 0 : kPauseTrialInterval;
}

void EntryRing::LookAtOther() {
  const RankRegion& other = layout_.region(1 - rank());
  // Both are on one line. Pairs with the release stores in PublishSettled.
  const uint64_t word = other.agreements.load(std::memory_order_acquire);
  others_settled_ =
      std::max(others_settled_, other.collectives_settled.load(std::memory_order_acquire));
  const Agreements theirs = Agreements::Near(number_, word);
  // Not this collective, which the other may have compared already, if this rank is still in it.
  AdvanceTo(std::min(theirs.compared, number_ - 1));
  const uint64_t left = number_ - 1 - compared_, passed = compared_ - theirs.compared;
  if (left == 0 || passed >= Agreements::kBits) return;
  agreed_ |= (theirs.agreed >> passed) & ((uint64_t{1} << left) - 1);
  AdvanceTo(compared_);
}

void EntryRing::AdvanceTo(uint64_t number) {
  while (compared_ < number || (agreed_ & 1) != 0) {
    ++compared_;
    agreed_ >>= 1;
  }
}

int EntryRing::CompareWhatIsThere(uint64_t last) {
  // To look at a few entries takes no longer.
  if (layout_.size() == 2 && compared_ + kSettleInterval / 2 < last) LookAtOther();
  for (; compared_ < last; AdvanceTo(compared_ + 1)) {
    const uint64_t number = compared_ + 1;
    const EntrySlot& own = SlotOf(rank(), number);
    for (int r = 0; r < layout_.size(); ++r) {
      if (r == rank()) continue;
      const EntrySlot& slot = SlotOf(r, number);
      if (slot.number() != number) return -1;
      if (slot.content.fingerprint != own.content.fingerprint) return r;
    }
  }
  return -1;
}

absl::Status EntryRing::SettleWhatIsThere(uint64_t last, const CallContext& call) {
  const int differs = CompareWhatIsThere(last);
  if (differs >= 0) return FailWithMismatch(differs, call);
  PublishSettled();
  group_.waiter().Notify(own_.progress_event);
  return absl::OkStatus();
}

absl::Status EntryRing::SettleAllSlowly(const CallContext& call) {
  const int differs = CompareWhatIsThere(number_ - 1);
  if (differs >= 0) return FailWithMismatch(differs, call);
  SYNCLINE_DCHECK(compared_ == number_ - 1);
  NoteAllEntered();
  return absl::OkStatus();
}

void EntryRing::PublishSettled() {
  if (layout_.size() == 2) {
    const uint64_t agreements = Agreements{compared_, agreed_}.ToWord();
    if (agreements != own_.agreements.load(std::memory_order_relaxed)) {
      own_.agreements.store(agreements, std::memory_order_release);
    }
  }
  published_ = number_;
  if (settled_ == compared_) return;
  settled_ = compared_;
  // Pairs with the acquire load in AwaitOthers: this rank's reads of these entries are over.
  own_.collectives_settled.store(settled_, std::memory_order_release);
}

absl::Status EntryRing::Leave() {
  absl::Status status;
  for (uint64_t number = compared_ + 1; number <= number_ && status.ok(); ++number) {
    const EntrySlot& own = SlotOf(rank(), number);
    // A call that could not enter has failed the group.
    if (own.number() != number) break;
    for (int r = 0; r < layout_.size() && status.ok(); ++r) {
      const EntrySlot& slot = SlotOf(r, number);
      if (r == rank() || slot.number() != number ||
          slot.content.fingerprint == own.content.fingerprint) {
        continue;
      }
      // Waits for nothing, and so on behalf of no call.
      status = MismatchError(number, backends::CallDescription(own.content.fingerprint), r,
                             CallContext(), absl::ZeroDuration());
    }
  }
  // Not what `agreements` says: the other may still have to compare.
  own_.collectives_settled.store(number_, std::memory_order_release);
  group_.waiter().Notify(own_.progress_event);
  return status;
}

absl::Status EntryRing::FailWithMismatch(int rank, const CallContext& call) {
  const uint64_t number = compared_ + 1;
  const backends::CallDescription own(SlotOf(group_.rank(), number).content.fingerprint);
  return group_.failure_cell().Fail(MismatchError(number, own, rank, call, kQuotingTimeout));
}

absl::Status EntryRing::MismatchError(uint64_t number, const backends::CallDescription& own,
                                      int rank, const CallContext& call, absl::Duration timeout) {
  const EntrySlot& slot = SlotOf(rank, number);
  if (call.step_of == nullptr && slot.meets() && timeout > absl::ZeroDuration()) {
    const Deadline quoting(timeout), never(absl::InfiniteDuration());
    SYNCLINE_RETURN_IF_ERROR(
        group_.waiter().Await(layout_.region(rank).collective_event, rank, {call, never, number},
                              [&] { return HasPublishedCall(rank, number) || quoting.Expired(); }));
  }
  auto theirs = CallOf(rank, number);
  if (!theirs.ok()) theirs = backends::CallDescription(slot.content.fingerprint);
  const backends::PeerTable& peers = group_.peers();
  return backends::DifferentCallsError(own, peers.NumberOf(group_.rank()), *theirs,
                                       peers.NumberOf(rank));
}

bool EntryRing::AllMeet() const {
  for (int r = 0; r < layout_.size(); ++r) {
    const EntrySlot& slot = SlotOf(r, number_);
    if (r != rank() && slot.number() == number_ && !slot.meets()) return false;
  }
  return true;
}

bool EntryRing::HasPublishedCall(int rank, uint64_t number) const {
  return layout_.region(rank).full_call_number.load(std::memory_order_acquire) == number;
}

absl::StatusOr<backends::CallDescription> EntryRing::CallOf(int rank, uint64_t number) const {
  if (!HasPublishedCall(rank, number)) {
    return backends::CallDescription(SlotOf(rank, number).content.fingerprint);
  }
  // A copy, which a broken rank cannot change while it is read.
  const int64_t* const words = layout_.full_call(rank);
  absl::StatusOr<backends::CallDescription> call = backends::CallDescription::FromWords(
      std::vector<int64_t>(words, words + backends::CallDescription::MaxWords(layout_.size())));
  return call.ok() ? call : WithRanks(call.status(), {group_.peers().NumberOf(rank)});
}

}  // namespace syncline::shm
