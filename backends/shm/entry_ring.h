// Which entries and eager buffers a rank may use again, and which calls it has still to compare.
#ifndef SYNCLINE_BACKENDS_SHM_ENTRY_RING_H_
#define SYNCLINE_BACKENDS_SHM_ENTRY_RING_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/shm/buffer_rings.h"
#include "backends/shm/segment_layout.h"
#include "backends/shm/shm_group.h"
#include "backends/shm/thresholds.h"
#include "backends/shm/wait_context.h"
#include "syncline/status.h"

namespace syncline::shm {

// One rank's account of the entries of its group; CollectiveEntry is one of them. A rank that gives
// data goes on without waiting for those that take them, at most as many collectives ahead as it
// has entry slots. So there are two things to keep:
//
// - Reuse. A slot is written again once all other ranks have settled the collective that had it,
//   and an eager buffer once all others have finished that collective: see RankRegion.
// - Comparison. A rank compares its entry to every collective with those of all other ranks, though
//   it may have waited for some of them only. It settles a collective when it has done so, and does
//   so at the latest before it writes the slot again, at the next collective for which it waits for
//   all ranks, and when it leaves. Of two ranks, what one has compared the other need not, which
//   spares it most entries: who gives leaves it to who takes.
//
// Borrows the group. Not thread-safe.
class EntryRing {
 public:
  // With `compares_at_once`, which must be the same on all ranks, every rank waits for all others
  // in each collective.
  explicit EntryRing(ShmGroup& group, bool compares_at_once = false)
      : group_(group),
        layout_(group.layout()),
        own_(group.own_region()),
        own_eager_(layout_.eager_buffer(group.rank(), 0)),
        slots_(layout_.entry_slots()),
        compares_at_once_(compares_at_once),
        eager_ring_(layout_.sizes()) {}

  ShmGroup& group() { return group_; }
  bool compares_at_once() const { return compares_at_once_; }
  const EagerRing& eager_ring() const { return eager_ring_; }

  // The number of the collective that begins, from 1.
  uint64_t Begin() { return ++number_; }
  uint64_t number() const { return number_; }  // Of the last collective that has begun.

  // Returns once this rank may write the slot of the collective that has begun. Every
  // kSettleInterval collectives, and if it `meets` all others, it settles what it can: a mismatch
  // says more than that a rank has left or is late. A MismatchError, which fails the group, if
  // another rank made another call than this one in a collective before; it quotes both.
  absl::Status AwaitSlot(bool meets, const WaitContext& context) {
    const bool is_settled = number_ <= (meets ? compared_ + 1 : looked_ + kSettleInterval);
    // Nobody needs what stands in the slot any more, and this rank has told the others that it does
    // not need what stands in theirs: or two ranks could wait for each other.
    const bool is_free = number_ <= std::min(settled_, others_settled_) + slots_;
    if (ABSL_PREDICT_TRUE(is_settled && is_free)) {
      return absl::OkStatus();
    }
    return AwaitSlotSlowly(meets, context);
  }

  // This rank's slot of collective `number`.
  EntrySlot& OwnSlot(uint64_t number) const { return own_.entry_slots[number & (slots_ - 1)]; }

  // The offset of an eager buffer of `bytes` of this rank, from which nobody reads any more; and
  // where that is. `ahead`: this rank will not wait for those that read from it.
  absl::StatusOr<size_t> AllocateBuffer(size_t bytes, bool ahead, const WaitContext& context) {
    const EagerRing::Buffer buffer =
        eager_ring_.Allocate(bytes, number_, ahead, std::max(others_finished_, others_settled_));
    if (ABSL_PREDICT_FALSE(others_finished_ < buffer.used_by)) {
      SYNCLINE_RETURN_IF_ERROR(AwaitFinished(buffer.used_by, context));
    }
    return buffer.offset;
  }
  char* OwnBuffer(size_t offset) const { return own_eager_ + offset; }

  // Waits for the entry of `rank` to the collective that has begun; returns whether its call is
  // that of this rank.
  absl::StatusOr<bool> AwaitEntry(int rank, const backends::CallFingerprint& own,
                                  const WaitContext& context) {
    const EntrySlot& slot = SlotOf(rank, number_);
    if (slot.number() != number_) SYNCLINE_RETURN_IF_ERROR(AwaitEntryOf(rank, context));
    return slot.content.fingerprint == own;
  }
  // Call it before AwaitEntry if this rank waits for `rank` alone, which may be ahead. If it is,
  // its next entries are fetched: one at a time, each would take as long as several small
  // collectives. An entry that is not there yet is better left to its owner.
  void FetchFrom(int rank, bool two_lines) const {
    if (SlotOf(rank, number_).number() != number_) return;
    const EntrySlot& slot = SlotOf(rank, number_ + kFetchedEntrySlots);
    __builtin_prefetch(&slot);
    if (two_lines) __builtin_prefetch(slot.second_line());
  }

  // Call it when the entries of all ranks to the collective that has begun are there and agree.
  // Compares all that has not been compared before.
  absl::Status SettleAll(const CallContext& call) {
    if (ABSL_PREDICT_FALSE(compared_ != number_ - 1)) return SettleAllSlowly(call);
    NoteAllEntered();
    return absl::OkStatus();
  }
  // Call it when the entry of `rank` agrees, for which alone this rank has waited.
  void NoteAgreement() {
    if (layout_.size() != 2) return;
    if (ABSL_PREDICT_TRUE(compared_ + 1 == number_)) {
      compared_ = number_;
    } else {
      agreed_ |= uint64_t{1} << (number_ - compared_ - 1);
    }
  }

  // Ends the collective that has begun: this rank no longer reads data that were staged for it.
  void Finish() {
    // Pairs with the acquire load in AwaitOthers: this rank's reads of what was staged are over.
    own_.collectives_finished.store(number_, std::memory_order_release);
    if (number_ >= published_ + kSettleInterval || compared_ >= settled_ + kSettleInterval) {
      PublishSettled();
    }
    group_.waiter().Notify(own_.progress_event);
    group_.waiter().NotifyResting(own_, number_);
  }

  // Compares what can be compared without waiting, and lets the others use all slots again. Call it
  // after the last collective, when this rank leaves. A MismatchError as above, for which the
  // caller fails the group.
  absl::Status Leave();

  // Whether no other rank that has come to the collective that has begun may have gone on already.
  bool AllMeet() const;

  // The error of `own`, this rank's call in collective `number`, and that of `rank`, which differ.
  // Waits for the call in full of a rank that meets the others there, for up to `timeout`, unless
  // that is a step of another call. `call` is the one on whose behalf this thread waits.
  absl::Status MismatchError(uint64_t number, const backends::CallDescription& own, int rank,
                             const CallContext& call, absl::Duration timeout);

  // How long a rank that has found a mismatch waits for the calls in full, to quote them. Ranks
  // that meet have entered, so they answer at once unless they are stopped. The mismatch is certain
  // without.
  static constexpr absl::Duration kQuotingTimeout = absl::Seconds(1);

  // Whether `rank` has published its call in collective `number` in full; and that call, or as much
  // as its entry shows. Fails if what it has published is no call.
  bool HasPublishedCall(int rank, uint64_t number) const;
  absl::StatusOr<backends::CallDescription> CallOf(int rank, uint64_t number) const;

 private:
  using Counter = std::atomic<uint64_t> RankRegion::*;

  int rank() const { return group_.rank(); }
  const EntrySlot& SlotOf(int rank, uint64_t number) const {
    return layout_.entry_slot(rank, number);
  }

  absl::Status AwaitSlotSlowly(bool meets, const WaitContext& context);
  // Waits until all others have finished collective `number`.
  absl::Status AwaitFinished(uint64_t number, const WaitContext& context);
  absl::Status SettleAllSlowly(const CallContext& call);
  // All have entered the collective that has begun, so they have ended those before it.
  void NoteAllEntered() {
    others_finished_ = compared_;
    compared_ = number_;
  }
  absl::Status AwaitEntryOf(int rank, const WaitContext& context);
  // Before this rank waits for the entry of `rank`, which did not wait in the last call that this
  // rank waited in. If that one gives call after call, who is faster than it and looks for each
  // entry takes the line away from it each time, which makes both slower by half: so this one looks
  // away for a moment, after which it has some entries to take. It goes on so while that is the
  // case, and else tries again every kPauseTrialInterval waits.
  void LetGoAhead(int rank);
  // Of two ranks: learns what the other has compared.
  void LookAtOther();
  // Takes compared_ to `number`, if it is less, and further while agreed_ says so.
  void AdvanceTo(uint64_t number);
  // Compares the entries to collectives up to `last`, in turn, while those of all ranks are there.
  // Returns a rank whose entry to collective compared_ + 1 differs from that of this one, or -1.
  int CompareWhatIsThere(uint64_t last);
  // The same, and publishes what is settled. Fails the group if two entries differ.
  absl::Status SettleWhatIsThere(uint64_t last, const CallContext& call);
  // Waits until `counter` of all other ranks is at least `value`, which says that they need no
  // longer what this rank has written for that collective. Returns the least.
  absl::StatusOr<uint64_t> AwaitOthers(Counter counter, uint64_t value, const WaitContext& context);
  // Before that wait: lets ranks get on whose counter is less, see Waiter::Rest.
  void RestIfAheadBy(Counter counter, uint64_t value);
  // Says, for messages of other ranks, that this one waits before it enters.
  void NoteWaiting(const CallContext& call);
  // Fails the group, since the entry of `rank` to collective compared_ + 1 differs.
  absl::Status FailWithMismatch(int rank, const CallContext& call);
  void PublishSettled();

  ShmGroup& group_;
  const SegmentLayout& layout_;
  RankRegion& own_;
  char* const own_eager_;  // This rank's eager buffers.
  const uint64_t slots_;   // Of a rank.
  const bool compares_at_once_;
  uint64_t number_ = 0;
  uint64_t compared_ = 0;  // This rank's calls up to this agree with those of all others.
  // Of two ranks: whether entries agree of collectives after compared_, from the next one on, a bit
  // for each.
  uint64_t agreed_ = 0;
  uint64_t looked_ = 0;           // When this rank has last looked how far others have come.
  uint64_t published_ = 0;        // When this rank has last said how far it has come.
  uint64_t settled_ = 0;          // What this rank has published of that.
  uint64_t others_settled_ = 0;   // All others have settled at least these,
  uint64_t others_finished_ = 0;  // and finished these.
  bool they_give_ = false;    // Whether the last that this rank waited for need not wait itself.
  int until_pause_ = 0;       // Waits: see LetGoAhead.
  bool others_lead_ = false;  // After the last wait that one was far ahead: see Waiter::Doze.
  EagerRing eager_ring_;
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_ENTRY_RING_H_
