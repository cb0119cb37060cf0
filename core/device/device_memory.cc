#include "syncline/device_memory.h"

#include <atomic>
#include <memory>
#include <utility>

#include "core/device/device_runtime.h"
#include "core/device/registered_memory.h"
#include "syncline/device_memory.h"
#include "syncline/status.h"

namespace syncline {
namespace {

std::atomic<device::RegisteredAllocator> registered_allocator{nullptr};

absl::StatusOr<std::shared_ptr<void>> Allocate(const Device& device, size_t bytes,
                                               DeviceMemory memory) {
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  if (memory == DeviceMemory::kPlain) return runtime->Allocate(device, bytes);
  const device::RegisteredAllocator allocate = registered_allocator.load();
  if (allocate == nullptr) {
    return UnsupportedError(
        "registered memory is NCCL's: link backend nccl, //backends:nccl, to the program");
  }
  return bytes == 0 ? std::shared_ptr<void>() : allocate(device, bytes);
}

}  // namespace

absl::StatusOr<Tensor> EmptyOnDevice(const Device& device, DType dtype,
                                     absl::Span<const int64_t> shape, DeviceMemory memory) {
  SYNCLINE_RETURN_IF_ERROR(CheckShape(dtype, shape));
  if (device.type == DeviceType::kCpu) {
    if (memory == DeviceMemory::kPlain) return Tensor::TryZeros(dtype, shape);
    return UnsupportedError("registered memory is memory of CUDA devices, not of the CPU");
  }
  size_t bytes = SizeOf(dtype);
  for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<void> owner, Allocate(device, bytes, memory));
  void* const data = owner.get();
  return Tensor(data, dtype, shape, {}, device, std::move(owner));
}

namespace device {

void SetRegisteredAllocator(RegisteredAllocator allocator) {
  registered_allocator.store(allocator);
}

}  // namespace device
}  // namespace syncline
