#include "tests/backends/host_kernels.h"

#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/device/device_runtime.h"
#include "core/device/testing/fake_cuda_env.h"
#include "core/tensor/reduce_kernels.h"
#include "syncline/status.h"

namespace syncline {
namespace {

class HostKernels final : public device::Kernels {
 public:
  absl::Status CopyMany(absl::Span<const device::CopySpan> copies,
                        const Stream& stream) const override {
    return Launch(stream, [copies = std::vector<device::CopySpan>(copies.begin(), copies.end())] {
      for (const device::CopySpan& copy : copies) std::memcpy(copy.to, copy.from, copy.bytes);
    });
  }
  absl::Status Reduce(DType dtype, ReduceOp op, void* to, absl::Span<const void* const> inputs,
                      int64_t count, const Stream& stream) const override {
    return Launch(stream, [=, kept = std::vector<const void*>(inputs.begin(), inputs.end())] {
      tensor::Reduce(dtype, op, to, kept, static_cast<size_t>(count));
    });
  }
  absl::Status Scale(DType dtype, void* data, double factor, int64_t count,
                     const Stream& stream) const override {
    return Launch(stream, [=] { tensor::Scale(dtype, data, factor, static_cast<size_t>(count)); });
  }
  absl::Status Divide(DType dtype, void* data, int divisor, int64_t count,
                      const Stream& stream) const override {
    return Launch(stream,
                  [=] { tensor::Divide(dtype, data, divisor, static_cast<size_t>(count)); });
  }
  absl::Status Convert(DType, void*, DType, const void*, int64_t, const Stream&) const override {
    return UnsupportedError("the host converts nothing");
  }

 private:
  using Body = std::function<void()>;

  static absl::Status Launch(const Stream& stream, Body body) {
    SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
    const device::DeviceRuntime::ContextScope scope(*runtime, stream.device);
    SYNCLINE_RETURN_IF_ERROR(scope.status());
    static auto* const launch =
        device::FakeCuda::Get().Driver<int(void*, void (*)(void*), void*)>("cuLaunchHostFunc");
    const auto run = [](void* data) {
      const std::unique_ptr<Body> owned(static_cast<Body*>(data));
      (*owned)();
    };
    auto owned = std::make_unique<Body>(std::move(body));
    if (launch(stream.handle, run, owned.get()) != 0) return BackendError("cuLaunchHostFunc");
    static_cast<void>(owned.release());
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<const device::Kernels*> HostKernelsOf(const Device&) {
  static const auto* const kernels = new HostKernels;
  return kernels;
}

absl::StatusOr<const device::Kernels*> NoKernelsOf(const Device&) {
  return UnsupportedError("the driver is too old for this test's kernels");
}

}  // namespace syncline
