// Chooses which parts of their buffers ranks use next.
//
// Every rank computes the same, as all make the same calls in the same order; nothing is exchanged.
// Buffers are used in turn, all of them, and not the same ones again: a line that is still in
// another core's cache costs some 7 ns to write, one that has long left it 2. Very short data are
// the exception, as they stay in the first cache: there two small eager buffers take turns.
#ifndef SYNCLINE_BACKENDS_SHM_BUFFER_RINGS_H_
#define SYNCLINE_BACKENDS_SHM_BUFFER_RINGS_H_

#include <cstddef>
#include <cstdint>

#include "backends/shm/segment_layout.h"

namespace syncline::shm {

// The eager buffers: two small ones, followed by a ring for large ones. Not thread-safe.
class EagerRing {
 public:
  explicit EagerRing(const BufferSizes& sizes)
      : small_(sizes.small_eager), ring_size_(sizes.large_eager_ring) {}

  bool IsSmall(size_t bytes) const { return bytes <= small_; }
  // The offset that Allocate returns next for a small size.
  size_t next_small() const { return is_second_ ? 0 : small_; }

  // The offset of the next `bytes`, at most sizes.eager. They do not overlap those of the call
  // before, which a slow rank may still read; it has finished all earlier ones.
  size_t Allocate(size_t bytes) {
    if (IsSmall(bytes)) {
      const size_t offset = next_small();
      is_second_ = !is_second_;
      return offset;
    }
    const size_t taken = (bytes + base::kCacheLine - 1) / base::kCacheLine * base::kCacheLine;
    if (ring_at_ + taken > ring_size_) ring_at_ = 0;
    ring_at_ += taken;
    return 2 * small_ + ring_at_ - taken;
  }

 private:
  const size_t small_, ring_size_;
  bool is_second_ = false;
  size_t ring_at_ = 0;
};

// The buffers for chunks of pipelined collectives. Not thread-safe.
class ChunkRing {
 public:
  // The slots of one collective. The k-th chunk is at offset(k); kPipelineDepth chunks in a row do
  // not overlap.
  struct Slots {
    size_t chunk, first, count;

    size_t slot(uint64_t k) const { return (first + k) % count; }
    size_t offset(uint64_t k) const { return slot(k) * chunk; }
  };

  explicit ChunkRing(const BufferSizes& sizes) : size_(kPipelineDepth * sizes.max_chunk) {}

  // Slots for `chunks` > 0 chunks of `chunk` bytes, which divides sizes.max_chunk.
  Slots Allocate(size_t chunk, uint64_t chunks) {
    const Slots slots = {chunk, (at_ + chunk - 1) / chunk, size_ / chunk};
    at_ = (slots.slot(chunks - 1) + 1) * chunk;
    return slots;
  }

 private:
  const size_t size_;
  size_t at_ = 0;
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_BUFFER_RINGS_H_
