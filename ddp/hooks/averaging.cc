#include "ddp/hooks/averaging.h"

#include "core/tensor/reduce_kernels.h"
#include "syncline/reduce_op.h"
#include "syncline/status.h"

namespace syncline::ddp {

absl::Status AllReduceAverage(const Tensor& tensor, int64_t divisor, ProcessGroup& group) {
  if (divisor == group.size()) return group.AllReduce(tensor, ReduceOp::kAvg);
  SYNCLINE_RETURN_IF_ERROR(group.AllReduce(tensor, ReduceOp::kSum));
  tensor::Divide(tensor.dtype(), tensor.data(), static_cast<int>(divisor),
                 static_cast<size_t>(tensor.numel()));
  return absl::OkStatus();
}

}  // namespace syncline::ddp
