#include "ddp/hooks/averaging.h"

#include "core/device/device_runtime.h"
#include "core/device/kernels.h"
#include "core/tensor/reduce_kernels.h"
#include "syncline/device.h"
#include "syncline/reduce_op.h"
#include "syncline/status.h"
#include "syncline/stream.h"

namespace syncline::ddp {

absl::Status AllReduceAverage(const Tensor& tensor, int64_t divisor, ProcessGroup& group) {
  if (divisor == group.size()) return group.AllReduce(tensor, ReduceOp::kAvg);
  SYNCLINE_RETURN_IF_ERROR(group.AllReduce(tensor, ReduceOp::kSum));
  if (tensor.device().type != DeviceType::kCpu) {
    SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
    SYNCLINE_ASSIGN_OR_RETURN(const device::Kernels* const kernels,
                              runtime->KernelsOf(tensor.device()));
    return kernels->Divide(tensor.dtype(), tensor.data(), static_cast<int>(divisor), tensor.numel(),
                           CurrentStream(tensor.device()));
  }
  tensor::Divide(tensor.dtype(), tensor.data(), static_cast<int>(divisor),
                 static_cast<size_t>(tensor.numel()));
  return absl::OkStatus();
}

}  // namespace syncline::ddp
