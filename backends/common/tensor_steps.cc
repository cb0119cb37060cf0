#include "backends/common/tensor_steps.h"

#include <cstdint>

#include "core/tensor/copy_bytes.h"
#include "syncline/check.h"

namespace syncline::backends {

void CopyElements(const Tensor& from, const Tensor& to) {
  SYNCLINE_DCHECK(from.dtype() == to.dtype() && from.numel() == to.numel());
  if (from.numel() == 0 || from.data() == to.data()) return;
  tensor::CopyBytes(to.data(), from.data(), from.nbytes());
}

ReduceOp PartialOp(ReduceOp op) { return op == ReduceOp::kAvg ? ReduceOp::kSum : op; }

}  // namespace syncline::backends
