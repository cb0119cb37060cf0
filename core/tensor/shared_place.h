// Finds the shared memory that holds a tensor's bytes, by their address, and maps memory that
// another process has handed over. Thread-safe.
#ifndef SYNCLINE_CORE_TENSOR_SHARED_PLACE_H_
#define SYNCLINE_CORE_TENSOR_SHARED_PLACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/tensor/segment.h"
#include "syncline/tensor.h"

namespace syncline::tensor {

// The location of some bytes in the memory of a tensor that EmptyShared or MapShared has made.
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

// All bytes of a segment that another process has handed over, as a tensor of type uint8. Takes
// ownership of `descriptor`. If this process maps the segment already, the same memory as before,
// and the descriptor is closed. With a lease (segment_pool.h) its sender may use the segment again
// when the tensor and all its views are gone, unless KeepContents was called. BackendError if it is
// not a sealed segment of at least `size` bytes.
// The process then keeps the mapping for that, of at most 16 segments and 64 MiB.
enum class LeaseKind { kNone, kUntilFreed };
absl::StatusOr<Tensor> MapShared(int descriptor, size_t size, LeaseKind lease = LeaseKind::kNone);

// The location of some bytes in memory that MapNamed has mapped. FindShared does not find these.
struct NamedPlace {
  std::string name;
  size_t offset;  // Of the bytes.
  size_t size;    // Of the memory.
  std::shared_ptr<void> keeper;
};
std::optional<NamedPlace> FindNamed(const void* data, size_t bytes);

// As MapShared, of a file in /dev/shm (core/segments). Closes `descriptor`. The memory holds
// `keeper` until it is freed; if it was mapped already, the keeper that it has stays.
absl::StatusOr<Tensor> MapNamed(std::string name, int descriptor, size_t size,
                                std::shared_ptr<void> keeper);

// Keeps the contents of the memory that holds this byte after its owner has freed it here, for the
// processes that it is handed to. Other memories that EmptyShared has made are then zero.
void KeepContents(const void* data);

// Frees the mappings that are kept until their senders use them again; and how many there are.
void FreeIdleMappings();
size_t IdleMappingCount();

// Whether the memory with this number still exists; and how many memories have been freed so far.
bool IsShared(uint64_t memory);
uint64_t SharedMemoriesFreed();

}  // namespace syncline::tensor

#endif  // SYNCLINE_CORE_TENSOR_SHARED_PLACE_H_
