// The algorithms of gloo's collectives: which rank sends what to whom.
#ifndef SYNCLINE_BACKENDS_GLOO_GLOO_COLLECTIVES_H_
#define SYNCLINE_BACKENDS_GLOO_GLOO_COLLECTIVES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "gloo/context.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::gloo_backend {

// One collective operation of one rank: make an object, call one method, destroy it. The methods do
// what those of the same name in include/syncline/collective.h say, and block until this rank's
// part is done. Requires that all ranks make calls that go together: a message longer than the
// receive posted for it ends the process. Throws what Gloo throws, see CatchGloo.
//
// Reductions share the work out: rank r receives the r-th part of every rank's elements and
// combines them in the order of the ranks, with one rounding of the small float types. So results
// do not depend on timing, and are bitwise those of backend local. thresholds.h says up to which
// size they are done in one exchange instead.
//
// Not thread-safe. It shares the context; tensors are borrowed for the call.
class GlooCollectives {
 public:
  // `sequence` is the number of the operation, the same on all ranks.
  GlooCollectives(std::shared_ptr<gloo::Context> gloo, uint64_t sequence);

  void Broadcast(const Tensor& tensor, int root);
  void AllReduce(const Tensor& tensor, ReduceOp op);
  void Reduce(const Tensor& tensor, ReduceOp op, int root);
  void AllGather(absl::Span<const Tensor> outputs, const Tensor& input);
  void Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root);
  void Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root);
  void ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op);
  void AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs);

 private:
  // Brings every rank's tensor to all of `receivers`, where it is combined.
  void DirectReduce(const Tensor& tensor, ReduceOp op, absl::Span<const int> receivers);

  const std::shared_ptr<gloo::Context> gloo_;
  const int rank_;
  const int size_;
  const uint32_t tag_;
};

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_GLOO_COLLECTIVES_H_
