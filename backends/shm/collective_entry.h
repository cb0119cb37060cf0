// How ranks enter a collective: each shows its call, and checks that all have made the same.
#ifndef SYNCLINE_BACKENDS_SHM_COLLECTIVE_ENTRY_H_
#define SYNCLINE_BACKENDS_SHM_COLLECTIVE_ENTRY_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/common/call_description.h"
#include "backends/shm/segment_layout.h"
#include "backends/shm/shm_group.h"
#include "backends/shm/thresholds.h"
#include "backends/shm/wait_context.h"
#include "syncline/backend.h"
#include "syncline/deadline.h"

namespace syncline::shm {

// One rank's entry to one collective. A rank stages its data, if they are few enough, and then
// exchanges entries with all others; after that it may read what they have staged, until it ends
// the collective. Lives on the stack of the call; borrows all that it is made of. Not thread-safe.
//
//   CollectiveEntry entry(group, context, ++number, bytes, eager_offset);
//   std::memcpy(entry.Buffer(), data, bytes);
//   SYNCLINE_RETURN_IF_ERROR(entry.Exchange());
//   Use(entry.BufferOf(other));
class CollectiveEntry {
 public:
  static constexpr size_t kInlineBytesAfterSplits = kInlineMaxBytes - sizeof(int64_t);

  // Enters the collective with `number` in the group. All ranks stage the same number of `bytes`:
  // inline in the entry slot if they fit there, else in the eager buffer at `eager_offset`. Nobody
  // reads either any more: all ranks have finished the collective before the last.
  CollectiveEntry(ShmGroup& group, const CallContext& call, uint64_t number, size_t bytes,
                  size_t eager_offset)
      : group_(group),
        layout_(group.layout()),
        context_{call, call.deadline, number},
        is_inline_(bytes <= kInlineMaxBytes),
        eager_offset_(eager_offset) {}

  // Where this rank stages its data before Exchange, and where those of another are after it.
  char* Buffer() {
    return is_inline_ ? inline_data_ : layout_.eager_buffer(group_.rank(), eager_offset_);
  }
  const char* BufferOf(int rank) const {
    return is_inline_ ? SlotOf(rank).content.inline_data
                      : layout_.eager_buffer(rank, eager_offset_);
  }

  // Publishes this rank's call and staged data, and returns once all ranks have done so and have
  // made the same call. A MismatchError, which fails the group, quotes two calls that differ. Other
  // errors are those of Waiter::Await.
  absl::Status Exchange();

  // all_to_all alone. StageSplits, before Exchange, publishes how many elements this rank exchanges
  // with others; returns the most that it sends any other, or expects. LargestBlockOf, after
  // Exchange, is what StageSplits returned on another rank.
  int64_t StageSplits();
  int64_t LargestBlockOf(int rank) const;
  // The inline data that splits leave free: kInlineBytesAfterSplits bytes.
  char* InlineDataAfterSplits() { return inline_data_ + sizeof(int64_t); }
  const char* InlineDataAfterSplitsOf(int rank) const {
    return SlotOf(rank).content.inline_data + sizeof(int64_t);
  }
  // After Exchange: the most elements that any rank sends any other. A MismatchError, which fails
  // the group, if what the ranks send each other is not what they expect.
  absl::StatusOr<int64_t> CheckSplits();

  const WaitContext& context() const { return context_; }

 private:
  const EntrySlot& SlotOf(int rank) const { return layout_.entry_slot(rank, context_.number); }

  // Fills this rank's slot and says so.
  void Publish(const backends::CallFingerprint& fingerprint);
  // Publishes this rank's call in full, to be quoted and compared in detail.
  void PublishCall();
  bool HasPublishedCall(int rank) const;
  // The call that a rank has published. Fails if that is none.
  absl::StatusOr<backends::CallDescription> CallOf(int rank) const;
  // Whether the calls of all ranks match. Requires that all have published theirs.
  absl::Status CheckCalls() const;

  // Fails the group, since the fingerprint of `rank` differs from this rank's.
  absl::Status FailWithMismatch(int rank);

  ShmGroup& group_;
  const SegmentLayout& layout_;
  const WaitContext context_;
  const bool is_inline_;
  const size_t eager_offset_;
  // Goes to the slot in Exchange: others look at that line all the time, and every write to it
  // before would cost a transfer between caches.
  alignas(uint64_t) char inline_data_[kInlineMaxBytes];
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_COLLECTIVE_ENTRY_H_
