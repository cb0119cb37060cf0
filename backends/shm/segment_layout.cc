#include "backends/shm/segment_layout.h"

#include <algorithm>

#include "backends/common/call_description.h"

namespace syncline::shm {
namespace {

constexpr size_t kPage = 4096;

constexpr size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The size of each of n buffers: `max`, halved until all of them take no more than `total`.
size_t Share(size_t total, size_t n, size_t max) {
  size_t share = max;
  while (share > 1 && share * n > total) share /= 2;
  return share;
}

// The smallest power of two that is no less than `bytes`.
constexpr size_t NextPowerOfTwo(size_t bytes) {
  size_t power = 1;
  while (power < bytes) power *= 2;
  return power;
}

}  // namespace

BufferSizes::BufferSizes(int size) {
  const size_t n = static_cast<size_t>(size);
  const Tuning tuning = ReadTuning();
  large_eager_ring = Share(kLargeEagerRingsBytes, n, kMaxLargeEagerRingBytes);
  // A call may wrap around in the ring while the slowest rank still reads the buffer of the call
  // before: more than two must fit.
  const size_t most_eager = large_eager_ring / kLargeEagerBuffers;
  eager = std::min(most_eager, tuning.eager_threshold);
  shared_cores_eager = std::min(most_eager, tuning.shared_cores_eager_threshold);
  small_eager = std::min(eager, Share(kSmallEagersBytes, n, kSmallEagerMaxBytes));
  small_eager_ring =
      std::max(small_eager, Share(kSmallEagerRingsBytes, n, kSmallEagerRingBuffers * small_eager));
  // A chunk has a cache line for each other rank, however many there are: BlockChunksOf relies on
  // it, and so groups of more than some hundred ranks take more than kChunkRingsBytes.
  max_chunk = std::max(Share(kChunkRingsBytes, kPipelineDepth * n, tuning.max_chunk),
                       NextPowerOfTwo((n - 1) * base::kCacheLine));
  min_chunk = std::min(max_chunk, tuning.min_chunk);
  direct_access = tuning.direct_access_threshold;
  direct_chunk = std::max(min_chunk, tuning.direct_chunk);
  cma = tuning.cma_threshold;
  eager_payload = Share(kEagerPayloadsBytes, kEagerPayloads * n, kEagerMessageMaxBytes);
  rendezvous_buffers = std::clamp(size - 1, 1, kMaxRendezvousBuffers);
  rendezvous_buffer =
      Share(kRendezvousBuffersBytes, n * rendezvous_buffers, kRendezvousBufferBytes);
  message_slots = std::max(Share(kMessageSlotsBytes, n * n * sizeof(MessageSlot), kMaxMessageSlots),
                           kMinMessageSlots);
}

SegmentLayout::Offsets::Offsets(int size) : sizes(size) {
  size_t at = sizeof(RankRegion);
  const auto reserve = [&at](size_t bytes) {
    const size_t here = at;
    at = RoundUp(at + bytes, kPage);
    return here;
  };
  full_call = reserve(backends::CallDescription::MaxWords(size) * sizeof(int64_t));
  eager_buffers = reserve(sizes.EagerBytes());
  chunks = reserve(kPipelineDepth * sizes.max_chunk);
  // A rank's part of a chunk is rounded up to whole cache lines, so the parts of many small chunks
  // take more than a share of the ring: up to two lines more for each chunk in it.
  reduced =
      reserve(kPipelineDepth * (sizes.max_chunk / size +
                                (sizes.max_chunk / sizes.min_chunk + 1) * 2 * base::kCacheLine));
  eager_payloads = reserve(kEagerPayloads * sizes.EagerPayloadStride());
  rendezvous_buffers = reserve(sizes.rendezvous_buffers * sizes.rendezvous_buffer);
  region_bytes = at;
  join_flags = RoundUp(sizeof(FailureRecord), base::kCacheLine);
  // Regions begin on a page, so that a rank can reserve its own and nothing of another's.
  regions = RoundUp(join_flags + sizeof(JoinFlag) * size, kPage);
  message_slots = regions + region_bytes * size;
  total =
      message_slots + static_cast<size_t>(size) * size * sizes.message_slots * sizeof(MessageSlot);
}

std::array<SegmentLayout::Extent, 2> SegmentLayout::OwnOf(int rank, int size) {
  const Offsets offsets(size);
  // Slots are ordered by sender first, so those of what this rank sends are in a row.
  const size_t slots = size * offsets.sizes.message_slots * sizeof(MessageSlot);
  return {{{offsets.regions + rank * offsets.region_bytes, offsets.region_bytes},
           {offsets.message_slots + rank * slots, slots}}};
}

}  // namespace syncline::shm
