// Chooses which parts of their buffers ranks use next.
//
// Of chunks every rank computes the same, as all make the same calls in the same order; nothing is
// exchanged. Buffers are used in turn, all of them, and not the same ones again: a line that is
// still in another core's cache costs some 7 ns to write, one that has long left it 2. Very short
// data are the exception, as they stay in the first cache: there two small eager buffers take
// turns.
#ifndef SYNCLINE_BACKENDS_SHM_BUFFER_RINGS_H_
#define SYNCLINE_BACKENDS_SHM_BUFFER_RINGS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/base/optimization.h"
#include "backends/shm/segment_layout.h"

namespace syncline::shm {

// The eager buffers of one rank: two small ones for collectives in which the ranks wait for each
// other, then a ring of small ones for those in which this rank goes on at once, then a ring of
// large ones. Which buffer it has used stands in its entry. Not thread-safe.
class EagerRing {
 public:
  struct Buffer {
    size_t offset;
    // The last collective that has used any of it, or 0 if all ranks have finished that, or if an
    // earlier allocation has named it or a later one: all ranks must have finished it before this
    // one writes to the buffer.
    uint64_t used_by;
  };

  explicit EagerRing(const BufferSizes& sizes)
      : small_(sizes.small_eager),
        small_ring_(2 * small_, sizes.small_eager_ring),
        large_ring_(2 * small_ + sizes.small_eager_ring, sizes.large_eager_ring) {}

  bool IsSmall(size_t bytes) const { return bytes <= small_; }
  // The offset that Allocate returns next for a small size, or where it is likely to be.
  size_t NextSmall(bool ahead) const {
    if (ahead) return small_ring_.next();
    return is_second_ ? 0 : small_;
  }

  // The next `bytes`, at most sizes.eager, for collective `number`, which is larger than in all
  // calls before. `ahead`: the rank will go on at once. All ranks have finished the collectives up
  // to `finished`.
  Buffer Allocate(size_t bytes, uint64_t number, bool ahead, uint64_t finished) {
    if (!IsSmall(bytes)) return large_ring_.Allocate(bytes, number, finished);
    if (ahead) return small_ring_.Allocate(bytes, number, finished);
    const Buffer buffer = {NextSmall(false), used_by_[is_second_ ? 0 : 1]};
    is_second_ = !is_second_;
    used_by_[is_second_ ? 1 : 0] = number;
    return buffer;
  }

 private:
  // A ring of bytes, in which buffers follow each other. Keeps the last ones: of those before, all
  // ranks have finished the collectives, since these are more than kEntrySlots ago.
  class Ring {
   public:
    Ring(size_t begin, size_t size) : begin_(begin), size_(size), free_end_(size) {}

    size_t next() const { return begin_ + at_; }

    Buffer Allocate(size_t bytes, uint64_t number, uint64_t finished) {
      const size_t taken = (bytes + base::kCacheLine - 1) / base::kCacheLine * base::kCacheLine;
      uint64_t used_by = 0;
      if (ABSL_PREDICT_FALSE(at_ + taken > free_end_)) used_by = MakeRoom(taken, finished);
      const size_t begin = at_;
      uses_[last_++ % kUses] = {number, begin};
      at_ += taken;
      return {begin_ + begin, used_by};
    }

   private:
    static constexpr size_t kUses = 2 * kEntrySlots;
    struct Use {
      uint64_t number;
      size_t begin;
    };

    const Use& Oldest() const { return uses_[first_ % kUses]; }

    // Sees to it that `bytes` from at_ on are free once all ranks have finished the collective that
    // it returns. What they have finished already is forgotten, so that it is called seldom.
    uint64_t MakeRoom(size_t bytes, uint64_t finished) {
      first_ = std::max(first_, last_ - std::min(last_, kUses));
      uint64_t used_by = 0;
      if (at_ + bytes > size_) {
        // The rest of the ring is passed over. What has used it is the oldest of all.
        while (first_ < last_ && Oldest().begin >= at_) used_by = uses_[first_++ % kUses].number;
        at_ = 0;
      }
      // Those that begin before at_ are of this round, the newest of all.
      while (first_ < last_) {
        const Use& oldest = Oldest();
        const bool overlaps = oldest.begin >= at_ && oldest.begin < at_ + bytes;
        if (overlaps) used_by = oldest.number;
        if (!overlaps && oldest.number > finished) break;
        ++first_;
      }
      free_end_ = first_ < last_ && Oldest().begin >= at_ ? Oldest().begin : size_;
      return used_by;
    }

    const size_t begin_, size_;
    size_t at_ = 0;
    size_t free_end_;  // From at_ to here nobody reads any more.
    Use uses_[kUses];
    size_t first_ = 0, last_ = 0;
  };

  const size_t small_;
  bool is_second_ = false;
  uint64_t used_by_[2] = {};
  Ring small_ring_, large_ring_;
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
