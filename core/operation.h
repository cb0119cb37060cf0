// One operation of one rank, as data: checked, described and handed to a backend in one place.
#ifndef SYNCLINE_CORE_OPERATION_H_
#define SYNCLINE_CORE_OPERATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/backend.h"
#include "core/reduce_op.h"
#include "core/tensor.h"

namespace syncline {

// The arguments of a call. Which fields mean something depends on `kind`.
struct Operation {
  OpKind kind;
  Tensor tensor = {};                   // All but barrier; of all_gather, the input.
  std::vector<Tensor> outputs = {};     // all_gather
  ReduceOp reduce_op = ReduceOp::kSum;  // all_reduce
  int64_t peer = 0;                     // The root of broadcast, the other rank of send and recv.
  int64_t tag = 0;                      // send, recv

  bool is_p2p() const { return kind == OpKind::kSend || kind == OpKind::kRecv; }

  // "all_reduce #1580 (float32[4096] on cpu, sum)".
  std::string ToString(uint64_t sequence) const;
};

// The one check of arguments, for all backends: ranks in range, tensors contiguous, on a device of
// the backend, writable where they are written, equal in type and size and apart from each other
// where they must be, and the whole within the backend's capabilities. ArgumentError, TypeError or
// UnsupportedError that says what was expected.
absl::Status Validate(const Operation& operation, const Backend& backend, int rank, int size);

// Makes the call of `backend` that `operation` stands for.
absl::Status Dispatch(const Operation& operation, const CallContext& context, Backend& backend);

}  // namespace syncline

#endif  // SYNCLINE_CORE_OPERATION_H_
