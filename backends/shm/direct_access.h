// Collectives by direct access: ranks read each other's tensors where they are, without a copy
// through the buffers of the group.
#ifndef SYNCLINE_BACKENDS_SHM_DIRECT_ACCESS_H_
#define SYNCLINE_BACKENDS_SHM_DIRECT_ACCESS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "backends/shm/adaptive_copier.h"
#include "backends/shm/collective_entry.h"
#include "backends/shm/registration_cache.h"
#include "backends/shm/segment_layout.h"
#include "backends/shm/shm_group.h"
#include "backends/shm/thresholds.h"
#include "backends/shm/wait_context.h"
#include "syncline/op_kind.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::shm {

// One rank's part. Ranks read each other's tensors: those of include/syncline/shared_memory.h in
// place, those in ordinary memory by CMA (cross_memory.h). Ranks never write another's tensor: a
// rank that was stopped, and goes on after the others have given up, must not write to memory that
// its owner uses for something else by then. Nor may it return what it has read there: Finish
// checks that.
//
// What a rank cannot read by CMA in the middle of a call (memory of a device, pages that the kernel
// does not give away, a process that has become not dumpable) it asks the owner for, who copies it
// to its bounce buffer while it waits for others to be done. That owner offers no address for the
// next kDirectTrialInterval calls.
//
// Borrows the group, and the copier with which this rank copies to buffers otherwise; not
// thread-safe.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const bool direct,
//                             access.Exchange(entry, bytes, readable, own, bytes_of));
//   if (!direct) return ...;  // Through the buffers: on all ranks.
//   SYNCLINE_RETURN_IF_ERROR(access.Read(rank, 0, to, bytes, entry.context()));
//   return access.Finish(readable, entry.context());
class DirectAccess {
 public:
  DirectAccess(ShmGroup& group, AdaptiveCopier& copier)
      : group_(group),
        copier_(copier),
        layout_(group.layout()),
        registrations_(group),
        mapped_(layout_.size()),
        addresses_(layout_.size()),
        served_(layout_.size(), 0) {}

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

  // The same for all_to_all, whose entry has splits in it. Before its exchange: stages where the
  // blocks for all ranks begin, the largest of which has `largest` bytes. After it, if all blocks
  // of all ranks have one size: whether direct access pays and is possible, the same on all ranks.
  void StageAddress(CollectiveEntry& entry, size_t largest, absl::Span<const Tensor> own);
  bool ResolveAddresses(const CollectiveEntry& entry);

  // Copies `bytes` of the data of another readable rank, its `own`, from byte `offset` on. Errors:
  // those of Waiter::Await.
  absl::Status Read(int rank, size_t offset, void* to, size_t bytes, const WaitContext& context);

  // Reduces `bytes` of the data of all ranks, from byte `offset` on, into `to`, in the order of
  // ranks. `own` is that of this rank, and may be `to`.
  absl::Status Reduce(DType dtype, ReduceOp op, size_t offset, const char* own, char* to,
                      size_t bytes, const WaitContext& context);

  // Ends a direct collective. Fails if a readable rank may have given up while this one read; else
  // returns once no rank reads this one's tensor any more.
  absl::Status Finish(const ReadableRanks& readable, const WaitContext& context);

  absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const WaitContext& context);

 private:
  int rank() const { return group_.rank(); }
  int size() const { return layout_.size(); }

  absl::StatusOr<bool> ExchangeHandles(size_t bytes, bool may_be_mapped,
                                       absl::Span<const Tensor> own, const ReadableRanks& readable,
                                       BytesOfRank bytes_of, CollectiveEntry& entry);
  // Whether this rank offers its tensor by address in the collective that begins.
  bool OffersAddress(OpKind kind, size_t bytes);
  void ReduceMapped(const Tensor& tensor, ReduceOp op, size_t begin, size_t bytes);
  absl::Status ReadByBounce(int rank, size_t offset, void* to, size_t bytes,
                            const WaitContext& context);
  // Answers the requests of other ranks for this one's data: see BounceRequest. Does not wait.
  void ServeRequests();
  // Waits for `ready`, which `rank` makes true, and serves requests meanwhile.
  template <typename Ready>
  absl::Status AwaitServing(int rank, const WaitContext& context, const Ready& ready);
  void NotifyAll();
  void PublishSteps(uint64_t steps);
  absl::Status AwaitSteps(int rank, uint64_t steps, const WaitContext& context);

  ShmGroup& group_;
  AdaptiveCopier& copier_;
  const SegmentLayout& layout_;
  RegistrationCache registrations_;
  uint64_t steps_ = 0;  // Made in all direct collectives that have ended.

  // Of the current collective.
  const char* own_ = nullptr;  // What others read of this rank, and its bytes.
  size_t own_bytes_ = 0;
  bool uses_cma_ = false;            // Some rank's tensor is read by address.
  std::vector<const char*> mapped_;  // By rank: where its tensor is here, or null;
  std::vector<uint64_t> addresses_;  // then this is its address in its process.

  std::vector<char> blocks_;      // What Reduce has read by CMA.
  std::vector<uint64_t> served_;  // By rank: the last of its requests that this one has answered.
  int being_served_ = -1;         // The rank that has not taken its answer yet, or -1.
  uint64_t requests_ = 0;         // That this rank has made.
  int until_offer_ = 0;           // Calls until this rank offers its tensors by address again.

  // Copies to this rank's own tensor, which others read: of what it reduced, and of what it
  // gathered. They differ in who holds the lines, so each has a trial of its own.
  AdaptiveCopier reduced_copier_, gathered_copier_;
  int until_trial_ = 0;  // Calls of AllReduce until direct access is tried again.
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_DIRECT_ACCESS_H_
