#include "backends/hierarchical/local_steps.h"

#include "backends/common/tensor_steps.h"
#include "core/tensor/reduce_kernels.h"

namespace syncline::hierarchical {

Tensor CopyOf(HierarchicalCall& call, const Tensor& tensor) {
  const Tensor copy = call.arena().Allocate(tensor.dtype(), tensor.numel());
  backends::CopyElements(tensor, copy);
  return copy;
}

void Combine(const HierarchicalCall& call, const Tensor& tensor,
             absl::Span<const void* const> terms, ReduceOp op) {
  tensor::Reduce(tensor.dtype(), backends::PartialOp(op), tensor.data(), terms, tensor.numel());
  if (op == ReduceOp::kAvg) {
    tensor::Divide(tensor.dtype(), tensor.data(), call.topology().size(), tensor.numel());
  }
}

}  // namespace syncline::hierarchical
