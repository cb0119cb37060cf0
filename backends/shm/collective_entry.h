// How ranks enter a collective: each shows its call, and checks that others have made the same.
#ifndef SYNCLINE_BACKENDS_SHM_COLLECTIVE_ENTRY_H_
#define SYNCLINE_BACKENDS_SHM_COLLECTIVE_ENTRY_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/common/call_fingerprint.h"
#include "backends/shm/byte_range.h"
#include "backends/shm/entry_ring.h"
#include "backends/shm/segment_layout.h"
#include "backends/shm/shm_group.h"
#include "backends/shm/thresholds.h"
#include "backends/shm/wait_context.h"
#include "syncline/backend.h"
#include "syncline/deadline.h"
#include "syncline/status.h"

namespace syncline::shm {

inline constexpr int kEveryRank = -1;
inline constexpr int kNoRank = -2;

// One rank's entry to one collective. A rank stages its data, if they are few enough, shows its
// call, and waits for the ranks whose data it needs; after that it may read what these have staged,
// until it ends the collective. A rank that needs no data goes on at once. Lives on the stack of
// the call; borrows all that it is made of. Not thread-safe.
//
//   CollectiveEntry entry(ring, context, bytes);
//   if (rank == root) {
//     SYNCLINE_ASSIGN_OR_RETURN(char* const buffer, entry.Stage(bytes, /*ahead=*/true));
//     std::memcpy(buffer, data, bytes);
//   }
//   SYNCLINE_RETURN_IF_ERROR(entry.Exchange(rank == root ? kNoRank : root));
//   if (rank != root) std::memcpy(data, entry.BufferOf(root), bytes);
//   ring.Finish();
class CollectiveEntry {
 public:
  static constexpr size_t kInlineBytesAfterSplits = kInlineEntryMaxBytes - sizeof(int64_t);

  // Enters the next collective of the group. The ranks that stage have up to `bytes`: inline in the
  // entry slot if they fit there, else in an eager buffer.
  CollectiveEntry(EntryRing& ring, const CallContext& call, size_t bytes)
      : ring_(ring),
        group_(ring.group()),
        layout_(group_.layout()),
        context_{call, call.deadline, ring.Begin()},
        is_inline_(bytes <= kInlineEntryMaxBytes),
        has_two_lines_(is_inline_ && bytes > kInlineMaxBytes),
        must_meet_(ring.compares_at_once() || call.meets || HasMoreThanItsFingerprint(call)) {}

  // Where this rank stages `bytes` before Exchange, and where those of another are after it.
  // `ahead`: Exchange will not wait for those that read them. Errors: those of Waiter::Await, as
  // other ranks may still read what was there.
  ABSL_ATTRIBUTE_ALWAYS_INLINE absl::StatusOr<char*> Stage(size_t bytes, bool ahead) {
    if (is_inline_) return InlineData(bytes);
    return StageInBuffer(bytes, ahead, InlineData(sizeof(size_t)));
  }
  const char* BufferOf(int rank) const {
    return is_inline_ ? InlineDataOf(rank) : EagerBufferOf(rank, InlineDataOf(rank));
  }

  // Publishes this rank's call and staged data. Then waits for the entry of one rank, whose data
  // this one needs, or of every rank, or of none; and compares the calls. A MismatchError, which
  // fails the group, quotes two calls that differ, of this collective or one of those before it for
  // which this rank has not waited. Other errors are those of Waiter::Await: this rank waits for
  // others, whatever it needs, before it is further ahead of them than it has entry slots.
  ABSL_ATTRIBUTE_ALWAYS_INLINE absl::Status Exchange(int needed = kEveryRank) {
    const auto own = backends::CallFingerprint::Of(context_.call);
    const bool meets = needed == kEveryRank || must_meet_;
    SYNCLINE_RETURN_IF_ERROR(ring_.AwaitSlot(meets, context_));
    // A rank that waits for all in one step may not do so in the call of which that is a step.
    Publish(own, context_.call.step_of != nullptr ? must_meet_ : meets);
    if (meets) return Meet(own);
    return needed == kNoRank ? absl::OkStatus() : TakeFrom(needed, own);
  }

  // The inline data of a collective that stages no more than these `bytes`.
  char* InlineData(size_t bytes) {
    inline_bytes_ = bytes;
    return inline_data_;
  }
  const char* InlineDataOf(int rank) const { return SlotOf(rank).content.inline_data; }

  // all_to_all alone. StageSplits, before Exchange, publishes how many elements this rank exchanges
  // with others; returns the most that it sends any other, or expects. LargestBlockOf, after
  // Exchange, is what StageSplits returned on another rank.
  int64_t StageSplits();
  int64_t LargestBlockOf(int rank) const;
  // The inline data behind the splits, up to kInlineBytesAfterSplits bytes. Or an eager buffer, of
  // which they say where it is.
  char* InlineDataAfterSplits(size_t bytes) {
    return InlineData(sizeof(int64_t) + bytes) + sizeof(int64_t);
  }
  const char* InlineDataAfterSplitsOf(int rank) const {
    return InlineDataOf(rank) + sizeof(int64_t);
  }
  absl::StatusOr<char*> StageAfterSplits(size_t bytes) {
    return StageInBuffer(bytes, /*ahead=*/false, InlineDataAfterSplits(sizeof(size_t)));
  }
  const char* BufferAfterSplitsOf(int rank) const {
    return EagerBufferOf(rank, InlineDataAfterSplitsOf(rank));
  }
  // After Exchange: whether all ranks send each other equally many elements.
  bool HasEvenSplits() const;
  // After Exchange: the most elements that any rank sends any other. A MismatchError, which fails
  // the group, if what the ranks send each other is not what they expect.
  absl::StatusOr<int64_t> CheckSplits();

  const WaitContext& context() const { return context_; }

  // The bytes in an eager buffer that this rank has staged, and whether it has gone ahead.
  size_t staged_bytes() const { return staged_bytes_; }
  bool is_ahead() const { return is_ahead_; }
  size_t inline_bytes() const { return inline_bytes_; }

 private:
  // Whether messages quote more of the call than its fingerprint shows. Ranks meet in such calls,
  // so that each can ask the others for theirs.
  static bool HasMoreThanItsFingerprint(const CallContext& call) {
    return !call.collective->user_name.empty() || call.collective->user_tensors != nullptr;
  }

  const EntrySlot& SlotOf(int rank) const { return layout_.entry_slot(rank, context_.number); }
  // `where` holds the offset.
  ABSL_ATTRIBUTE_ALWAYS_INLINE absl::StatusOr<char*> StageInBuffer(size_t bytes, bool ahead,
                                                                   char* where) {
    is_ahead_ = ahead && !must_meet_;
    staged_bytes_ = bytes;
    SYNCLINE_ASSIGN_OR_RETURN(const size_t offset,
                              ring_.AllocateBuffer(bytes, is_ahead_, context_));
    std::memcpy(where, &offset, sizeof(offset));
    return ring_.OwnBuffer(offset);
  }
  const char* EagerBufferOf(int rank, const char* where) const {
    size_t offset;
    std::memcpy(&offset, where, sizeof(offset));
    // Of another process, which may be broken: nothing is read beyond this rank's memory of it,
    // since what follows the eager buffers is larger than any of them.
    return layout_.eager_buffer(rank, std::min(offset, layout_.eager_bytes()));
  }

  // Fills this rank's slot and says so.
  void Publish(const backends::CallFingerprint& fingerprint, bool meets) {
    EntrySlot& slot = ring_.OwnSlot(context_.number);
    slot.content.fingerprint = fingerprint;
    CopyFew(slot.content.inline_data, inline_data_, inline_bytes_);
    // Pairs with the acquire load in EntrySlot::number, on the other ranks: they see the content
    // and all staged data.
    slot.stamp.store(EntrySlot::Stamp(context_.number, meets), std::memory_order_release);
    group_.waiter().Notify(group_.own_region().collective_event);
  }
  // The waits of Exchange: for one rank, whose data this one needs, and for all.
  absl::Status TakeFrom(int rank, const backends::CallFingerprint& own);
  absl::Status Meet(const backends::CallFingerprint& own);
  // Publishes this rank's call in full, to be quoted and compared in detail.
  void PublishCall();
  // Whether the calls of all ranks match. Requires that all have entered.
  absl::Status CheckCalls() const;

  // Fails the group, since the fingerprint of `rank` differs from this rank's: all have entered.
  absl::Status FailWithMismatch(int rank);

  EntryRing& ring_;
  ShmGroup& group_;
  const SegmentLayout& layout_;
  WaitContext context_;
  const bool is_inline_;
  const bool has_two_lines_;  // The data need the second line of the slot.
  const bool must_meet_;
  size_t staged_bytes_ = 0;
  bool is_ahead_ = false;
  size_t inline_bytes_ = 0;
  // Goes to the slot in Exchange: others look at that line all the time, and every write to it
  // before would cost a transfer between caches.
  alignas(uint64_t) char inline_data_[kInlineEntryMaxBytes];
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_COLLECTIVE_ENTRY_H_
