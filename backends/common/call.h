// What one rank called, in the form in which ranks compare it and messages quote it.
#ifndef SYNCLINE_BACKENDS_COMMON_CALL_H_
#define SYNCLINE_BACKENDS_COMMON_CALL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/backend.h"
#include "core/dtype.h"
#include "core/reduce_op.h"
#include "core/tensor.h"

namespace syncline {

// Fields that mean nothing to `kind` keep their defaults, so that calls compare field by field.
struct Call {
  OpKind kind;
  uint64_t sequence;
  DType dtype = DType::kUInt8;
  int64_t count = 0;  // Elements of the tensor; of all_gather, of the input.
  ReduceOp op = ReduceOp::kSum;
  int peer = -1;  // The root of broadcast, the other rank of send and recv.
  int tag = 0;

  static Call Broadcast(const Tensor& tensor, int root, const CallContext& context);
  static Call AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context);
  static Call AllGather(const Tensor& input, const CallContext& context);
  static Call Barrier(const CallContext& context);
  static Call Send(const Tensor& tensor, int dst, const CallContext& context);
  static Call Recv(const Tensor& tensor, int src, const CallContext& context);

  // "all_reduce #5", "recv #2 from rank 1".
  std::string ShortName() const;
  // "all_reduce #5 (float32, 10 elements, sum)".
  std::string ToString() const;

  friend bool operator==(const Call& a, const Call& b) {
    return a.kind == b.kind && a.sequence == b.sequence && a.dtype == b.dtype &&
           a.count == b.count && a.op == b.op && a.peer == b.peer && a.tag == b.tag;
  }
  friend bool operator!=(const Call& a, const Call& b) { return !(a == b); }
};

// OK if what rank `src` sends fits what rank `dst` receives; else a MismatchError that quotes both.
absl::Status CheckFits(const Call& sent, int src, const Call& received, int dst);

// "rank 2", "ranks 1, 2 and 5".
std::string NameRanks(absl::Span<const int> ranks);

// "has" for one, "have" for several.
std::string Have(absl::Span<const int> ranks);

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_COMMON_CALL_H_
