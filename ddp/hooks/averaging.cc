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
  if (tensor.device().type != DeviceType::kCpu) {
    SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
    const absl::StatusOr<const device::Kernels*> found = runtime->KernelsOf(tensor.device());
    // Before the other ranks wait for this one. The backend divides without our kernels, too.
    if (!found.ok() && IsFloating(tensor.dtype())) {
      return group.AllReduce(tensor, ReduceOp::kPremulSum, {}, 1.0 / static_cast<double>(divisor));
    }
    SYNCLINE_ASSIGN_OR_RETURN(const device::Kernels* const kernels, found);
    SYNCLINE_RETURN_IF_ERROR(group.AllReduce(tensor, ReduceOp::kSum));
    return kernels->Divide(tensor.dtype(), tensor.data(), static_cast<int>(divisor), tensor.numel(),
                           CurrentStream(tensor.device()));
  }
  SYNCLINE_RETURN_IF_ERROR(group.AllReduce(tensor, ReduceOp::kSum));
  tensor::Divide(tensor.dtype(), tensor.data(), static_cast<int>(divisor),
                 static_cast<size_t>(tensor.numel()));
  return absl::OkStatus();
}

}  // namespace syncline::ddp
