// How gloo's collectives move and combine the elements.
#ifndef SYNCLINE_BACKENDS_GLOO_COLLECTIVE_H_
#define SYNCLINE_BACKENDS_GLOO_COLLECTIVE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor/reduce_op.h"
#include "core/tensor/tensor.h"
#include "gloo/context.h"

namespace syncline {

// One collective of one rank, of those with the same names in core/group/backend.h. Requires that
// all ranks make the call that goes with it: a message longer than what is expected ends the
// process. Throws what Gloo throws, see CatchGloo.
//
// Reductions share the work out: rank r receives the r-th part of every rank's elements and
// combines them in the order of the ranks, with one rounding of the small float types. So results
// do not depend on timing, and are those of backend local.
class Collective {
 public:
  Collective(std::shared_ptr<gloo::Context> gloo, uint64_t sequence);

  void Broadcast(const Tensor& tensor, int root);
  void AllReduce(const Tensor& tensor, ReduceOp op);
  void Reduce(const Tensor& tensor, ReduceOp op, int root);
  void AllGather(absl::Span<const Tensor> outputs, const Tensor& input);
  void Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root);
  void Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root);
  void ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op);
  void AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs);

 private:
  // `tensor` in as many parts as there are ranks, of sizes as equal as can be.
  std::vector<Tensor> Share(const Tensor& tensor) const;
  void ReduceAtOnce(const Tensor& tensor, ReduceOp op, absl::Span<const int> receivers);

  const std::shared_ptr<gloo::Context> gloo_;
  const int rank_;
  const int size_;
  const uint32_t tag_;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_GLOO_COLLECTIVE_H_
