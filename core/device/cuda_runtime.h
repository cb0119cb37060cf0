// DeviceRuntime over CUDA's driver API.
#ifndef SYNCLINE_CORE_DEVICE_CUDA_RUNTIME_H_
#define SYNCLINE_CORE_DEVICE_CUDA_RUNTIME_H_

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "core/device/cuda_driver.h"
#include "core/device/device_runtime.h"
#include "core/device/kernels.h"
#include "syncline/deadline.h"
#include "syncline/device.h"
#include "syncline/fork.h"
#include "syncline/stream.h"

namespace syncline::device {

// The runtime of the process; what it makes refers to it. Contexts are retained when a device is
// first used, one by one: a context takes hundreds of megabytes of its device.
class CudaRuntime : public DeviceRuntime {
 public:
  // Opens and initializes the driver. UnsupportedError that says why there is nothing to use. The
  // runtime is never destroyed: threads that outlive main() may hold events and memory.
  static absl::StatusOr<CudaRuntime*> Make();

  int device_count() const override { return static_cast<int>(devices_.size()); }
  int driver_version() const override { return version_; }
  absl::StatusOr<int> ComputeCapability(const Device& device) override;
  absl::Status CheckKernels(const Device& device) override;
  absl::StatusOr<const Kernels*> KernelsOf(const Device& device) override;
  absl::StatusOr<Device> DeviceOf(const void* address) override;
  absl::StatusOr<std::shared_ptr<void>> Allocate(const Device& device, size_t bytes) override;
  absl::StatusOr<std::shared_ptr<void>> AllocatePinned(size_t bytes) override;
  absl::StatusOr<std::shared_ptr<const Stream>> MakeStream(const Device& device,
                                                           Priority priority) override;
  absl::StatusOr<std::shared_ptr<Event>> Record(const Stream& stream) override;
  absl::StatusOr<bool> IsCapturing(const Stream& stream) override;
  absl::Status Copy(void* to, const void* from, size_t bytes, const Stream& stream) override;
  absl::Status Fill(void* to, unsigned char value, size_t bytes, const Stream& stream) override;
  absl::Status Synchronize(const Stream& stream, const Deadline& deadline) override;

  // UnsupportedError in a child that was forked after Make, where no call of CUDA works.
  absl::Status CheckNotForked() const;

 protected:
  absl::Status PushContext(const Device& device) override;
  void PopContext() override;
  std::optional<int> ExchangeCaptureMode(int mode) override;

 private:
  class CudaEvent;

  struct DeviceState {
    absl::Mutex mutex;
    // The primary context once it is retained. Written under `mutex`, read without.
    std::atomic<CUcontext> context{nullptr};
    std::vector<CUevent> idle_events ABSL_GUARDED_BY(mutex);

    absl::Mutex kernels_mutex;
    std::optional<absl::StatusOr<std::unique_ptr<Kernels>>> kernels ABSL_GUARDED_BY(kernels_mutex);
  };

  CudaRuntime(CudaDriver driver, int version, int device_count);

  // The state of a CUDA device that there is. Errors as the interface has them.
  absl::StatusOr<DeviceState*> StateOf(const Device& device);
  absl::StatusOr<CUcontext> RetainContext(const Device& device);
  // Any device whose context serves for memory of the host: this thread's, else one in use.
  Device AnyDevice() const;

  // As CudaDriver::Check, of a call on `device`.
  absl::Status Check(CUresult result, absl::string_view function, const Device& device) const;

  // IsCapturing, where the context of the device is current.
  absl::StatusOr<bool> AskIsCapturing(const Stream& stream) const;

  absl::StatusOr<CUevent> TakeEvent(const Device& device);
  void GiveBackEvent(const Device& device, CUevent event);

  // The result of `allocate`, which is called again where there is no memory left and some is being
  // given back.
  CUresult AllocateAfterReleases(absl::FunctionRef<CUresult()> allocate);
  // An owner of `memory`, which TaskThread::Releases() gives back by `release`: cuMemFree and
  // cuMemFreeHost may wait for all work of a device.
  std::shared_ptr<void> Owned(const Device& device, void* memory, std::function<void()> release);

  // Calls `release` with the context of `device` current; not in a child of fork, nor where the
  // context cannot be made current, as when the process ends.
  template <typename Release>
  void ReleaseOn(const Device& device, const Release& release);

  const CudaDriver driver_;
  const int version_;
  std::deque<DeviceState> devices_;
  const ForkGuard fork_guard_;
};

}  // namespace syncline::device

#endif  // SYNCLINE_CORE_DEVICE_CUDA_RUNTIME_H_
