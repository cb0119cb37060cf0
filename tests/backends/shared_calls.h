// Collectives of ranks of one host on bytes in shared memory, which ranks read where they are, and
// what they must leave.
#ifndef SYNCLINE_TESTS_BACKENDS_SHARED_CALLS_H_
#define SYNCLINE_TESTS_BACKENDS_SHARED_CALLS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "syncline/backend.h"
#include "syncline/tensor.h"

namespace syncline {

// The collectives that move data.
const std::vector<OpKind>& SharedCalls();

// What a rank brings, and what it gets where that is apart.
struct SharedBuffers {
  // Each has `part` bytes for each of `ranks` ranks.
  SharedBuffers(int ranks, int64_t part);

  // All that it brings.
  void Fill(uint8_t value) const;

  Tensor own, result;
  std::vector<Tensor> inputs, outputs;  // Their parts.
};

// One of SharedCalls(); reductions take the maximum. `root` is that of those that have one.
absl::Status RunShared(OpKind kind, const SharedBuffers& buffers, int root, Backend& backend,
                       const CallContext& context);

// What this rank has got from rank `from`: the last of it that the call writes, if from another.
Tensor GotFrom(OpKind kind, const SharedBuffers& buffers, int from);

// OK if that is right on this rank, where rank r has brought `values[r]`.
absl::Status CheckShared(OpKind kind, const SharedBuffers& buffers, int root, int rank,
                         absl::Span<const uint8_t> values);

// OK if all bytes are `value`.
absl::Status CheckAll(const Tensor& tensor, uint8_t value);

}  // namespace syncline

#endif  // SYNCLINE_TESTS_BACKENDS_SHARED_CALLS_H_
