#include "core/device/device_runtime.h"

#include <atomic>

#include "core/device/cuda_runtime.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

std::atomic<const CudaRuntime*> loaded{nullptr};

}  // namespace

absl::StatusOr<DeviceRuntime*> DeviceRuntime::Get() {
  static const auto* const runtime = [] {
    auto* const made = new absl::StatusOr<CudaRuntime*>(CudaRuntime::Make());
    if (made->ok()) loaded.store(**made, std::memory_order_release);
    return made;
  }();
  if (!runtime->ok()) return runtime->status();
  SYNCLINE_RETURN_IF_ERROR((**runtime)->CheckNotForked());
  return **runtime;
}

bool DeviceRuntime::IsLoaded() {
  const CudaRuntime* const runtime = loaded.load(std::memory_order_acquire);
  return runtime != nullptr && runtime->CheckNotForked().ok();
}

}  // namespace syncline::device
