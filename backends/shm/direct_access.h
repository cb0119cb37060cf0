// Collectives by direct access: ranks read each other's tensors where they are, without a copy
// through the buffers of the group (zero copy).
#ifndef SYNCLINE_BACKENDS_SHM_DIRECT_ACCESS_H_
#define SYNCLINE_BACKENDS_SHM_DIRECT_ACCESS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "backends/shm/adaptive_copier.h"
#include "backends/shm/collective_entry.h"
#include "backends/shm/registration_cache.h"
#include "backends/shm/segment_layout.h"
#include "backends/shm/shm_group.h"
#include "backends/shm/wait_context.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::shm {

// One rank's part. Works for tensors of include/syncline/shared_memory.h. Ranks never write
// another's tensor: a rank that was stopped, and goes on after the others have given up, must not
// write to memory that its owner uses for something else by then. Nor may it return what it has
// read there: Finish checks that. Borrows the group; not thread-safe.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const bool direct,
//                             access.Exchange(entry, bytes, readable, own, bytes_of));
//   if (!direct) return ...;  // Through the buffers: on all ranks.
//   std::memcpy(to, access.DataOf(rank), bytes);
//   return access.Finish(readable, entry.context());
class DirectAccess {
 public:
  explicit DirectAccess(ShmGroup& group)
      : group_(group),
        layout_(group.layout()),
        registrations_(group),
        threshold_(layout_.sizes().direct_access) {}

  // Runs the exchange of a collective that stages nothing, in which others read the data of each
  // of the readable ranks: `own` if this is one, `bytes_of` that rank in all. `bytes`, the most
  // that one rank reads of another, decides whether direct access pays. Returns whether it does and
  // is possible. That is the same on all ranks; if so, each calls Finish after its last read.
  // Errors: those of CollectiveEntry::Exchange and Waiter::Await, and of
  // RegistrationCache::Resolve.
  absl::StatusOr<bool> Exchange(CollectiveEntry& entry, size_t bytes, const ReadableRanks& readable,
                                absl::Span<const Tensor> own, BytesOfRank bytes_of);

  // The same for all_reduce of `tensor`: AllReduce must follow if it returns true.
  absl::StatusOr<bool> ExchangeForAllReduce(CollectiveEntry& entry, const Tensor& tensor);

  // The data of a readable rank: its `own`.
  const char* DataOf(int rank) const { return registrations_.DataOf(rank); }

  // Ends a direct collective. Fails if a readable rank may have given up while this one read; else
  // returns once no rank reads this one's tensor any more.
  absl::Status Finish(const ReadableRanks& readable, const WaitContext& context);

  absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const WaitContext& context);

 private:
  int rank() const { return group_.rank(); }
  int size() const { return layout_.size(); }

  absl::StatusOr<bool> ExchangeHandles(const void* data, size_t bytes,
                                       const ReadableRanks& readable, BytesOfRank bytes_of,
                                       CollectiveEntry& entry);
  void Reduce(const Tensor& tensor, ReduceOp op, size_t begin, size_t bytes);
  void PublishSteps(uint64_t steps);
  absl::Status AwaitSteps(int rank, uint64_t steps, const WaitContext& context);

  ShmGroup& group_;
  const SegmentLayout& layout_;
  RegistrationCache registrations_;
  const size_t threshold_;
  uint64_t steps_ = 0;  // Made in all direct collectives that have ended.

  // Copies to this rank's own tensor, which others read: of what it reduced, and of what it
  // gathered. They differ in who holds the lines, so each has a trial of its own.
  AdaptiveCopier reduced_copier_, gathered_copier_;
  int until_trial_ = 0;  // Calls of AllReduce until direct access is tried again.
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_DIRECT_ACCESS_H_
