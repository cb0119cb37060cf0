// Finds the shared memory that holds a tensor's bytes, by their address.
#ifndef SYNCLINE_CORE_TENSOR_SHARED_PLACE_H_
#define SYNCLINE_CORE_TENSOR_SHARED_PLACE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/tensor/segment.h"

namespace syncline::tensor {

// The location of some bytes in the memory of a tensor that EmptyShared has made.
struct SharedPlace {
  uint64_t memory;  // The memory's number, from 1. No two memories of a process ever share one.
  size_t offset;    // Of the bytes.
  int descriptor;   // Of the memory, which owns it. The next two are the memory's, too.
  size_t size;
  Segment::Identity identity;
};

// The memory that holds all of the bytes, found by their address; nothing if no single one does.
// Costs one load where there are no such tensors.
std::optional<SharedPlace> FindShared(const void* data, size_t bytes);

// Whether the memory with this number still exists; and how many memories have been freed so far.
bool IsShared(uint64_t memory);
uint64_t SharedMemoriesFreed();

}  // namespace syncline::tensor

#endif  // SYNCLINE_CORE_TENSOR_SHARED_PLACE_H_
