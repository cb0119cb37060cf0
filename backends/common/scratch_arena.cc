#include "backends/common/scratch_arena.h"

namespace syncline::backends {

// The i-th tensor of every collective gets block i. Collectives of a job mostly repeat, so blocks
// soon have the right sizes.
Tensor ScratchArena::Allocate(DType dtype, int64_t count) {
  if (next_ == blocks_.size()) blocks_.emplace_back();
  Block& block = blocks_[next_++];
  const size_t size = count * SizeOf(dtype);
  if (block.size < size) {
    block.bytes.reset();  // Before the new block, so that both never exist at once.
    block.bytes.reset(new std::byte[size]);
    block.size = size;
  }
  return Tensor(block.bytes.get(), dtype, {count});
}

}  // namespace syncline::backends
