// Which parts of their buffers ranks use next. All ranks come to the same result by themselves,
// since they make the same calls.
//
// Buffers are used in turn, all of them, and not the same ones again: a line that is still in
// another core's cache costs some 7 ns to write, one that has long left it 2. (Not so of what is
// very short, which stays in the first cache.)
#ifndef SYNCLINE_BACKENDS_SHM_RINGS_H_
#define SYNCLINE_BACKENDS_SHM_RINGS_H_

#include <cstddef>
#include <cstdint>

#include "backends/shm/board.h"

namespace syncline {

// For what is laid on the table.
class TableRing {
 public:
  explicit TableRing(const Sizes& sizes) : near_(sizes.near), size_(sizes.tables) {}

  bool IsNear(size_t bytes) const { return bytes <= near_; }
  // Offset of the next, if that is near.
  size_t next_near() const { return is_second_ ? 0 : near_; }

  // Offset of the next `bytes`, at most sizes.eager: apart from those of the call before.
  size_t Take(size_t bytes) {
    if (IsNear(bytes)) {
      const size_t offset = next_near();
      is_second_ = !is_second_;
      return offset;
    }
    const size_t taken = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
    if (at_ + taken > size_) at_ = 0;
    at_ += taken;
    return 2 * near_ + at_ - taken;
  }

 private:
  const size_t near_, size_;
  bool is_second_ = false;
  size_t at_ = 0;
};

// For pieces.
class PieceRing {
 public:
  // Those of one collective: the k-th is at slot(k) * piece. At least kDepth in a row are apart.
  struct Slots {
    size_t piece, first, count;

    size_t slot(uint64_t k) const { return (first + k) % count; }
    size_t offset(uint64_t k) const { return slot(k) * piece; }
  };

  explicit PieceRing(const Sizes& sizes) : size_(kDepth * sizes.piece) {}

  // Of `pieces` > 0 pieces of `piece` bytes, which divides sizes.piece.
  Slots Take(size_t piece, uint64_t pieces) {
    const Slots slots = {piece, (at_ + piece - 1) / piece, size_ / piece};
    at_ = (slots.slot(pieces - 1) + 1) * piece;
    return slots;
  }

 private:
  const size_t size_;
  size_t at_ = 0;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_RINGS_H_
