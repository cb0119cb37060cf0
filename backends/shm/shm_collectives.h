// The collectives of ranks that share memory.
#ifndef SYNCLINE_BACKENDS_SHM_SHM_COLLECTIVES_H_
#define SYNCLINE_BACKENDS_SHM_SHM_COLLECTIVES_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "backends/shm/adaptive_copier.h"
#include "backends/shm/buffer_rings.h"
#include "backends/shm/collective_entry.h"
#include "backends/shm/direct_access.h"
#include "backends/shm/entry_ring.h"
#include "backends/shm/segment_layout.h"
#include "backends/shm/shm_group.h"
#include "backends/shm/thresholds.h"
#include "backends/shm/wait_context.h"
#include "syncline/backend.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::shm {

// One rank's part in all collectives; the functions are those of TypedBackend. Each begins with a
// CollectiveEntry. In the inline and eager ways of collectives with a root a rank waits only for
// those whose data it gets: the root of broadcast and scatter, and the others in reduce and gather,
// go on at once. In all other ways ranks wait for each other there. How the data move depends on N,
// a number of bytes:
//   inline       N <= kInlineEntryMaxBytes: in the entry slot itself. collective_entry.h.
//   eager        N <= eager(): ranks stage all their data in an eager buffer before the exchange,
//                which is the only wait while buffers are free; up to sizes().small_eager in a small
//                buffer, above in the ring of large ones. collective_entry.h, EagerRing of
//                buffer_rings.h.
//   direct       N above, and ranks read each other's tensors where they are: those in shared
//                memory that they map (D, R below), those in ordinary memory by CMA, where that
//                pays: CmaMayPay of thresholds.h. direct_access.h.
//   pipeline     all else: ranks move their data through rings of buffers, in chunks that fit a
//                core's cache. A rank fills its buffers and reads those of others, so that all
//                cores work all the time and main memory is only accessed for the users' tensors.
//                ChunkRing of buffer_rings.h.
//
//   operation        N                          direct where      pipeline
//   broadcast        the tensor                 D <= N < R        RunPipeline
//   reduce           the tensor                 D <= N < R        as all_reduce
//   all_reduce       the tensor                 D <= N, see (1)   2 ranks: ReduceFullChunks; more:
//                                                                 ReduceScatterGather
//   gather           the input                  D <= N < R        RunPipeline
//   all_gather       the largest output         D <= N            RunPipeline
//   scatter          all blocks, see (2)        D <= block < R    ScatterBlocksPipelined
//   reduce_scatter   all blocks, see (2)        D <= block        ScatterBlocksPipelined
//   all_to_all       all blocks, see (3)        by CMA, see (4)   ScatterBlocksPipelined
//   scan, exscan     all_gather of pieces of 1 MiB, and a reduction: TypedBackend::ReducePrefix
//   barrier          the exchange of the entry, and no data
//   send, recv       see point_to_point.h
//
// D is kDirectAccessMinBytes, R is kRootedDirectAccessMaxBytes. sizes() is BufferSizes of
// segment_layout.h. eager() is its `eager`, kEagerMaxBytes in groups of up to 32 ranks and less in
// larger ones; or, where ranks share cores, its `shared_cores_eager`, of all_reduce at most
// kSharedCoresEagerAllReduceMaxBytes. Its `small_eager` is kSmallEagerMaxBytes unless `eager` is
// less. (1) Below kBeyondCachesMinBytes, after a call in which writes were slow, a rank has the
// group do
//     without for kDirectTrialInterval calls.
// (2) A block is what one rank has for one other, the largest of all. N is the blocks for all other
//     ranks, each rounded up to whole cache lines unless all of them fit the entry slot. The blocks
//     of a rank must follow each other in memory to be read directly.
// (3) Only the exchange tells the sizes of other ranks' blocks. So each rank decides by its own
//     largest block whether it stages inline, where 8 bytes less are free, in a small buffer or in
//     a large one, in both of which each block has an equal share; and all take the pipeline if
//     the largest block of all exceeds its share of a large one.
// (4) If all blocks of all ranks have one size, and follow each other in memory.
//
// Errors are those of CollectiveEntry::Exchange and Waiter::Await; after an error the group has
// failed, and no other call may be made. Borrows the group. Not thread-safe.
class ShmCollectives {
 public:
  // `compares_at_once`: see EntryRing.
  explicit ShmCollectives(ShmGroup& group, bool compares_at_once = false)
      : group_(group),
        layout_(group.layout()),
        entry_ring_(group, compares_at_once),
        chunk_ring_(layout_.sizes()),
        direct_(group, copier_) {}

  absl::Status Broadcast(const Tensor& tensor, int root, const CallContext& context);
  absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context);
  absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root, const CallContext& context);
  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                         const CallContext& context);
  absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                      const CallContext& context);
  absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root,
                       const CallContext& context);
  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op,
                             const CallContext& context);
  absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                        const CallContext& context);
  absl::Status Barrier(const CallContext& context);

  // Call it when this rank leaves, in no call: compares its calls with those of other ranks as far
  // as they have come. See EntryRing::Leave.
  absl::Status Leave() { return entry_ring_.Leave(); }

  // After a collective of this rank: see EntryRing.
  bool AllMeet() const { return entry_ring_.AllMeet(); }

 private:
  struct PipelineSpec;
  struct PeerBlocks;
  using Counter = std::atomic<uint64_t> RankRegion::*;

  int rank() const { return group_.rank(); }
  int size() const { return layout_.size(); }

  // Runs `body` with the entry of the next collective, for which ranks stage up to `bytes`, at most
  // eager().
  template <typename Body>
  absl::Status RunCollective(const CallContext& context, size_t bytes, const Body& body);
  void PrefetchNext(const CollectiveEntry& entry);
  // What ranks stage of `bytes`: all or nothing.
  size_t EagerBytes(size_t bytes) const { return bytes <= eager() ? bytes : 0; }
  size_t eager() const {
    const BufferSizes& sizes = layout_.sizes();
    return group_.waiter().is_oversubscribed() ? sizes.shared_cores_eager : sizes.eager;
  }
  size_t eager_all_reduce() const {
    return std::min(eager(), std::max(layout_.sizes().eager, kSharedCoresEagerAllReduceMaxBytes));
  }

  // Have a result on `root`, or on every rank for kEveryRank.
  absl::Status ReduceTo(int root, const Tensor& tensor, ReduceOp op, CollectiveEntry& entry);
  absl::Status GatherTo(int root, absl::Span<const Tensor> outputs, const Tensor& input,
                        size_t largest, CollectiveEntry& entry);

  // Collectives in which a rank has a block for each other. consume(begin, size, data) takes up to
  // `size` bytes from byte `begin` of each block on; data(r) is what rank r has for this rank.
  // read_direct() takes this rank's block of each by direct access.
  template <typename Consume, typename ReadDirect>
  absl::Status ScatterBlocks(const PeerBlocks& blocks, CollectiveEntry& entry,
                             const Consume& consume, const ReadDirect& read_direct);
  template <typename Consume>
  absl::Status ScatterBlocksPipelined(const PeerBlocks& blocks, const WaitContext& context,
                                      const Consume& consume);
  // Stages the k-th `block_size` bytes of each input at `to`, one block after another, except this
  // rank's own.
  void StageBlocks(absl::Span<const Tensor> inputs, size_t block_size, uint64_t k, char* to);
  // The index of the block for rank `to` among those that rank `from` stages.
  static size_t BlockIndex(int to, int from) { return to < from ? to : to - 1; }
  size_t others() const { return std::max(size() - 1, 1); }
  // The size of each block in an eager buffer of `bytes`.
  size_t BlockSizeIn(size_t bytes) const {
    return bytes / others() / base::kCacheLine * base::kCacheLine;
  }
  // The bytes that blocks of up to `largest` take in an entry slot or eager buffer: each, and all
  // of them, or 0 if these are too many.
  size_t BlockSizeFor(size_t largest) const {
    return largest * others() <= kInlineEntryMaxBytes
               ? largest
               : (largest + base::kCacheLine - 1) / base::kCacheLine * base::kCacheLine;
  }
  size_t EagerBlockBytes(size_t largest) const {
    return EagerBytes(BlockSizeFor(largest) * others());
  }

  size_t ChunkSize(size_t bytes) const {
    return layout_.sizes().ChunkSize(bytes, layout_.sizes().max_chunk);
  }
  // Moves chunks through the ring. produce(k, to) stages the k-th chunk of this rank at `to`;
  // consume(k, offset) takes that of other ranks from layout_.chunk(rank, offset).
  template <typename Produce, typename Consume>
  absl::Status RunPipeline(const PipelineSpec& spec, const Produce& produce,
                           const Consume& consume);
  absl::Status ReduceDirect(int root, const Tensor& tensor, ReduceOp op,
                            const WaitContext& context);
  absl::Status ReduceFullChunks(int root, const Tensor& tensor, ReduceOp op,
                                const WaitContext& context);
  absl::Status ReduceScatterGather(int root, const Tensor& tensor, ReduceOp op,
                                   const WaitContext& context);

  absl::Status Await(int rank, Counter counter, uint64_t value, const WaitContext& context);
  absl::Status AwaitOthers(Counter counter, uint64_t value, const WaitContext& context);
  void Advance(Counter counter, uint64_t value);

  ShmGroup& group_;
  const SegmentLayout& layout_;
  EntryRing entry_ring_;
  uint64_t chunks_ = 0;  // Of all collectives that have ended.
  ChunkRing chunk_ring_;
  AdaptiveCopier copier_;  // To buffers.
  DirectAccess direct_;
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_SHM_COLLECTIVES_H_
