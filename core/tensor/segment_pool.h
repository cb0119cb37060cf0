// Segments for copies that are handed to other processes, used again when these are done with them.
#ifndef SYNCLINE_CORE_TENSOR_SEGMENT_POOL_H_
#define SYNCLINE_CORE_TENSOR_SEGMENT_POOL_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/segment.h"

namespace syncline::tensor {

// A segment whose last bytes are a lease: a word that the process that was handed the segment
// clears when it has unmapped it. Fresh pages cost the kernel many times what a copy costs, so its
// writer then uses the segment again, for as many bytes. A receiver that forks, hands the segment
// on, or dies never clears the word: the segment is then not used again, and freed as any other.
//
// Writes the parts, as Segment::Write does, to a segment of LeasedSize(size) bytes. Returns its
// descriptor, which is the caller's. The process keeps descriptors of at most 16 segments and 64
// MiB; a child of fork starts with none. Thread-safe. Errors as of Segment::Write.
absl::StatusOr<int> WriteLeased(size_t size, absl::Span<const Segment::Part> parts);

// The size of a segment with `size` bytes and a lease.
size_t LeasedSize(size_t size);

// Clears the lease of a segment of LeasedSize(...) bytes at `data`. Nothing may read the segment
// through this mapping afterwards.
void ReleaseLease(char* data, size_t leased_size);

}  // namespace syncline::tensor

#endif  // SYNCLINE_CORE_TENSOR_SEGMENT_POOL_H_
