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

// Whether a child of fork shares the elements with its parent or has its own. Its own are copied
// when it first writes them; until then it sees the parent's writes.
enum class AfterFork { kShared, kOwn };

// A new tensor on the CPU, its elements zero, in a segment of its own, which begins on a page and
// is freed with the last view. It uses one file descriptor. Views and arrays that share its bytes,
// such as NumPy's, count as shared too. Thread-safe, as all functions here. ArgumentError for an
// impossible shape; BackendError with sizes if there is not so much memory.
//
//   SYNCLINE_ASSIGN_OR_RETURN(Tensor gradients, EmptyShared(DType::kFloat32, {1 << 24}));
//   SYNCLINE_RETURN_IF_ERROR(group->AllReduce(gradients));  // Ranks of this host read it directly.
absl::StatusOr<Tensor> EmptyShared(DType dtype, absl::Span<const int64_t> shape,
                                   AfterFork after_fork = AfterFork::kShared);

// The location of some bytes in the memory of such a tensor.
struct SharedPlace {
  uint64_t
      memory;      // The memory's number, from 1. No two memories of a process have the same, ever.
  size_t offset;   // Of the bytes.
  int descriptor;  // Of the memory, which owns it. The next two are the memory's, too.
  size_t size;
  Segment::Identity identity;
};

// The memory that holds all of the bytes, found by their address; nothing if no single one does.
// Costs one load where there are no such tensors.
std::optional<SharedPlace> FindShared(const void* data, size_t bytes);

// Whether the memory with this number still exists; and how many memories have been freed so far.
bool IsShared(uint64_t memory);
uint64_t SharedMemoriesFreed();

}  // namespace syncline

#endif  // SYNCLINE_CORE_TENSOR_SHARED_MEMORY_H_
