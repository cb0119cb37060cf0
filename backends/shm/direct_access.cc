#include "backends/shm/direct_access.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "backends/shm/byte_range.h"
#include "backends/shm/thresholds.h"
#include "core/tensor/reduce_kernels.h"
#include "syncline/status.h"

namespace syncline::shm {
namespace {

// Whether the tensors follow each other without gaps: others find them by the address of the first.
bool AreContiguous(absl::Span<const Tensor> tensors) {
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (Bytes(tensors[i - 1]) + tensors[i - 1].nbytes() != Bytes(tensors[i])) return false;
  }
  return !tensors.empty();
}

size_t BytesOf(absl::Span<const Tensor> tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace

absl::StatusOr<bool> DirectAccess::Exchange(CollectiveEntry& entry, size_t bytes,
                                            const ReadableRanks& readable,
                                            absl::Span<const Tensor> own, BytesOfRank bytes_of) {
  const bool has_root = readable.only != kEveryRank || readable.except >= 0;
  // All ranks decide alike, as these sizes are part of the fingerprint.
  if (bytes < threshold_ || size() == 1 || (has_root && bytes >= kRootedDirectAccessMaxBytes)) {
    SYNCLINE_RETURN_IF_ERROR(entry.Exchange());
    return false;
  }
  const bool is_readable = readable.Has(rank()) && AreContiguous(own);
  return ExchangeHandles(is_readable ? own[0].data() : nullptr, BytesOf(own), readable, bytes_of,
                         entry);
}

absl::StatusOr<bool> DirectAccess::ExchangeForAllReduce(CollectiveEntry& entry,
                                                        const Tensor& tensor) {
  const size_t bytes = tensor.nbytes();
  if (bytes < threshold_ || size() == 1) {
    SYNCLINE_RETURN_IF_ERROR(entry.Exchange());
    return false;
  }
  // Each rank decides for itself; one that publishes no handle decides for all.
  const bool is_readable = bytes >= kBeyondCachesMinBytes || until_trial_ == 0;
  if (!is_readable) --until_trial_;
  const auto bytes_of = [bytes](int) { return bytes; };
  return ExchangeHandles(is_readable ? tensor.data() : nullptr, bytes, {}, bytes_of, entry);
}

absl::StatusOr<bool> DirectAccess::ExchangeHandles(const void* data, size_t bytes,
                                                   const ReadableRanks& readable,
                                                   BytesOfRank bytes_of, CollectiveEntry& entry) {
  registrations_.StageHandle(data, bytes, entry);
  SYNCLINE_RETURN_IF_ERROR(entry.Exchange());
  return registrations_.Resolve(readable, bytes_of, entry);
}

void DirectAccess::PublishSteps(uint64_t steps) {
  RankRegion& own = layout_.region(rank());
  // Pairs with the acquire load in AwaitSteps.
  own.direct_steps.store(steps, std::memory_order_release);
  group_.waiter().Notify(own.collective_event);
}

absl::Status DirectAccess::AwaitSteps(int rank, uint64_t steps, const WaitContext& context) {
  RankRegion& region = layout_.region(rank);
  return group_.waiter().Await(region.collective_event, rank, context, [&] {
    return region.direct_steps.load(std::memory_order_acquire) >= steps;
  });
}

absl::Status DirectAccess::Finish(const ReadableRanks& readable, const WaitContext& context) {
  // An owner may have given up, and used its tensor for something else, while this rank read there.
  SYNCLINE_RETURN_IF_ERROR(group_.failure_cell().CheckIntact(context.call));
  PublishSteps(++steps_);
  if (!readable.Has(rank())) return absl::OkStatus();
  for (int r = 0; r < size(); ++r) SYNCLINE_RETURN_IF_ERROR(AwaitSteps(r, steps_, context));
  return absl::OkStatus();
}

// Reduces the first block to memory of this core and copies it from there, which shows how fast the
// tensor can be written. If that was slow, all other blocks go the same way, past the caches.
void DirectAccess::Reduce(const Tensor& tensor, ReduceOp op, size_t begin, size_t bytes) {
  absl::InlinedVector<const void*, 8> inputs(size());
  alignas(base::kCacheLine) char block[kBypassBlockBytes];
  for (size_t at = begin, end = begin + bytes; at < end;) {
    const bool by_block = at == begin || reduced_copier_.bypasses_caches();
    const size_t taken = by_block ? std::min(kBypassBlockBytes, end - at) : end - at;
    for (int r = 0; r < size(); ++r) inputs[r] = DataOf(r) + at;
    char* const to = Bytes(tensor) + at;
    tensor::Reduce(tensor.dtype(), op, by_block ? block : to, inputs,
                   taken / SizeOf(tensor.dtype()));
    if (by_block) reduced_copier_.Copy(to, block, taken);
    at += taken;
  }
}

// A reduce-scatter and then an all-gather on each chunk, as ShmCollectives::ReduceScatterGather. No
// rank reads what another still writes: of the k-th part of each chunk, only rank k reads the
// inputs, and only it writes the result, which the others read after its step for that chunk.
absl::Status DirectAccess::AllReduce(const Tensor& tensor, ReduceOp op,
                                     const WaitContext& context) {
  const size_t bytes = tensor.nbytes();
  const size_t chunk = layout_.sizes().ChunkSize(bytes, layout_.sizes().direct_chunk);
  const size_t part = CeilDiv(CeilDiv(chunk, size()), base::kCacheLine) * base::kCacheLine;
  const uint64_t chunks = CeilDiv(bytes, chunk), first = steps_;
  // Gathers one chunk behind, while the others reduce theirs.
  for (uint64_t k = 0; k <= chunks; ++k) {
    if (k < chunks) {
      const ByteRange range(bytes, chunk, k);
      const ByteRange own(range.size, part, rank());
      if (own.size > 0) Reduce(tensor, op, range.begin + own.begin, own.size);
      PublishSteps(first + k + 1);
    }
    if (k == 0) continue;
    const ByteRange range(bytes, chunk, k - 1);
    for (int i = 1; i < size(); ++i) {
      const int r = (rank() + i) % size();
      const ByteRange theirs(range.size, part, r);
      const size_t begin = range.begin + theirs.begin;
      SYNCLINE_RETURN_IF_ERROR(AwaitSteps(r, first + k, context));
      gathered_copier_.Copy(Bytes(tensor) + begin, DataOf(r) + begin, theirs.size);
    }
  }
  // Where cores share no cache, a line that another core still holds costs so much to write that it
  // is faster to copy tensors that fit the caches through buffers.
  if (reduced_copier_.bypasses_caches() || gathered_copier_.bypasses_caches()) {
    until_trial_ = kDirectTrialInterval;
  }
  steps_ += chunks;
  return Finish({}, context);
}

}  // namespace syncline::shm
