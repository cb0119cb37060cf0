// Temporary tensors for one collective at a time.
#ifndef SYNCLINE_BACKENDS_COMMON_SCRATCH_ARENA_H_
#define SYNCLINE_BACKENDS_COMMON_SCRATCH_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "syncline/dtype.h"
#include "syncline/tensor.h"

namespace syncline::backends {

// Keeps its memory from one collective to the next: to get new pages from the kernel takes longer
// than to fill them. It never shrinks. Not thread-safe. Owns the memory of its tensors.
//
//   arena.Reset();
//   const Tensor copy = arena.Allocate(tensor.dtype(), tensor.numel());
class ScratchArena {
 public:
  // Frees all tensors at once, for the next collective.
  void Reset() { next_ = 0; }

  // A tensor whose elements are not initialized. Valid until Reset.
  Tensor Allocate(DType dtype, int64_t count);

 private:
  struct Block {
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;
  };

  std::vector<Block> blocks_;
  size_t next_ = 0;  // The first block that is free.
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_SCRATCH_ARENA_H_
