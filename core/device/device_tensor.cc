#include "core/device/device_tensor.h"

#include <memory>
#include <utility>

#include "core/device/device_runtime.h"
#include "syncline/status.h"

namespace syncline::device {

absl::StatusOr<Tensor> EmptyOn(const Device& device, DType dtype, absl::Span<const int64_t> shape) {
  SYNCLINE_RETURN_IF_ERROR(CheckShape(dtype, shape));
  if (device.type == DeviceType::kCpu) return Tensor::TryZeros(dtype, shape);
  SYNCLINE_ASSIGN_OR_RETURN(DeviceRuntime* const runtime, DeviceRuntime::Get());
  size_t bytes = SizeOf(dtype);
  for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<void> memory, runtime->Allocate(device, bytes));
  void* const data = memory.get();
  return Tensor(data, dtype, shape, {}, device, std::move(memory));
}

}  // namespace syncline::device
