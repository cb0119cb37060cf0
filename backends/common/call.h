// What one rank called, in the form in which ranks compare it and messages quote it.
#ifndef SYNCLINE_BACKENDS_COMMON_CALL_H_
#define SYNCLINE_BACKENDS_COMMON_CALL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/rank_ranges.h"
#include "core/group/backend.h"
#include "core/tensor/dtype.h"
#include "core/tensor/reduce_op.h"
#include "core/tensor/tensor.h"

namespace syncline {

// Fields that mean nothing to `kind` keep their defaults.
struct Call {
  using Counts = absl::InlinedVector<int64_t, 4>;

  // Faster than the initialization of an aggregate: this is on the way of every operation.
  Call(OpKind kind, uint64_t sequence, DType dtype = DType::kUInt8, int64_t count = 0)
      : kind(kind), sequence(sequence), dtype(dtype), count(count) {}

  OpKind kind;
  uint64_t sequence;
  DType dtype;
  int64_t count;  // Elements of this rank's tensor; of all_to_all, of all its inputs.
  ReduceOp op = ReduceOp::kSum;
  int peer = -1;  // The root, or the other rank of send and recv, which may be kAnySource.
  int tag = 0;
  Counts counts;    // One for each rank: of all_gather the sizes of the outputs,
                    // of reduce_scatter and all_to_all of the inputs.
  Counts expected;  // Of all_to_all: the sizes of the outputs.
  // CallForm. Names are literals and `tensors` is borrowed, unless `text` holds them.
  absl::string_view name, tensors;
  uint64_t form = 0;
  std::shared_ptr<const std::string> text;

  static Call Broadcast(const Tensor& tensor, int root, const CallContext& context);
  static Call AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context);
  static Call Reduce(const Tensor& tensor, ReduceOp op, int root, const CallContext& context);
  static Call AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                        const CallContext& context);
  static Call Gather(const Tensor& input, int root, const CallContext& context);
  static Call Scatter(const Tensor& output, int root, const CallContext& context);
  static Call ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op,
                            const CallContext& context);
  static Call AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                       const CallContext& context);
  static Call Barrier(const CallContext& context);
  static Call Send(const Tensor& tensor, int dst, const CallContext& context);
  static Call Recv(const Tensor& tensor, int src, const CallContext& context);

  // "all_reduce #5", "recv #2 from rank 1".
  std::string ShortName() const;
  // "all_reduce #5 (float32, 10 elements, sum)".
  std::string ToString() const;
};

// Whether two ranks may take part in one collective with these calls. Leaves out what those of
// all_to_all send each other, which need not be alike but fit: see CheckSplits.
bool SameCollective(const Call& a, const Call& b);

// OK if the ranks made the same call; else a MismatchError that quotes both. Of collectives.
absl::Status CheckSame(const Call& a, int rank_a, const Call& b, int rank_b);

// OK if what the ranks send each other in all_to_all is what they expect; else a MismatchError
// that quotes both calls. Requires CheckSame; OK for every other operation.
absl::Status CheckSplits(const Call& a, int rank_a, const Call& b, int rank_b);

// All of the above for all ranks at once: calls[r] is that of rank r.
absl::Status CheckCollective(absl::Span<const Call* const> calls);

// OK if what rank `src` sends fits what rank `dst` receives; else a MismatchError that quotes both.
absl::Status CheckFits(const Call& sent, int src, const Call& received, int dst);

// "has" for one, "have" for several.
std::string Have(absl::Span<const int> ranks);

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_COMMON_CALL_H_
