// Tensors in memory that the other processes of this host can map, so that collectives between
// ranks of one host read them where they are.
#ifndef SYNCLINE_CORE_TENSOR_SHARED_MEMORY_H_
#define SYNCLINE_CORE_TENSOR_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/dtype.h"
#include "core/tensor/segment.h"
#include "core/tensor/tensor.h"

namespace syncline {

// Whether the elements that a child of fork sees, and may write, are its parent's or its own. Its
// own are copied when it first writes them; until then what the parent writes shows.
enum class AfterFork { kShared, kOwn };

// A new tensor on the CPU, its elements zero, in memory of its own, which begins on a page, has no
// name in any file system, and is freed with the last view. Takes an open file. Everything that
// shares these bytes, such as an array of NumPy, is as good as the tensor. ArgumentError if there
// is no such shape; BackendError with sizes if there is not so much memory.
absl::StatusOr<Tensor> EmptyShared(DType dtype, absl::Span<const int64_t> shape,
                                   AfterFork after_fork = AfterFork::kShared);

// Where some bytes lie in the memory of such a tensor.
struct SharedPlace {
  uint64_t memory;  // A number, from 1, that no other in this process has or will have.
  size_t offset;    // Of the bytes.
  int descriptor;   // Of the memory, to which it belongs, as does what follows.
  size_t size;
  Segment::Identity identity;
};

// Nothing unless all of the bytes lie in one. Found by their address, wherever that comes from.
// Cheap where there are no such tensors.
std::optional<SharedPlace> FindShared(const void* data, size_t bytes);

// Whether the memory with this number has not been freed, and how many have, ever.
bool IsShared(uint64_t memory);
uint64_t SharedMemoriesFreed();

}  // namespace syncline

#endif  // SYNCLINE_CORE_TENSOR_SHARED_MEMORY_H_
