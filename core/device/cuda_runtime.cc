#include "core/device/cuda_runtime.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/device/cuda_kernels.h"
#include "core/device/stream_handle.h"
#include "core/device/task_thread.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

CUstream HandleOf(const Stream& stream) { return static_cast<CUstream>(stream.handle); }

CUdeviceptr AddressOf(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// How long an allocation waits for memory that is being given back: that may wait for all work of a
// device.
constexpr absl::Duration kReleaseTime = absl::Seconds(10);

}  // namespace

class CudaRuntime::CudaEvent : public Event {
 public:
  CudaEvent(CudaRuntime& runtime, const Device& device, CUevent event, bool is_captured)
      : runtime_(runtime), device_(device), event_(event), is_captured_(is_captured) {}
  ~CudaEvent() override { runtime_.GiveBackEvent(device_, event_); }

  const Device& device() const override { return device_; }

  absl::StatusOr<bool> IsDone() const override {
    if (is_captured_) {
      // To ask CUDA would end the capture.
      return BackendError(absl::StrCat(
          "an event on ", ToString(device_),
          " was recorded while a graph was captured: only work of the same graph can wait for it"));
    }
    const ContextScope scope(runtime_, device_);
    SYNCLINE_RETURN_IF_ERROR(scope.status());
    const RelaxedCaptureScope relaxed(runtime_);
    const CUresult result = runtime_.driver_.cuEventQuery(event_);
    if (result == CUDA_ERROR_NOT_READY) return false;
    SYNCLINE_RETURN_IF_ERROR(runtime_.Check(result, "cuEventQuery", device_));
    return true;
  }

  absl::Status EnqueueWait(const Stream& stream) const override {
    const ContextScope scope(runtime_, stream.device);
    SYNCLINE_RETURN_IF_ERROR(scope.status());
    return runtime_.Check(runtime_.driver_.cuStreamWaitEvent(HandleOf(stream), event_, 0),
                          "cuStreamWaitEvent", stream.device);
  }

 private:
  CudaRuntime& runtime_;
  const Device device_;
  const CUevent event_;
  const bool is_captured_;
};

absl::StatusOr<CudaRuntime*> CudaRuntime::Make() {
  SYNCLINE_ASSIGN_OR_RETURN(CudaDriver driver, OpenCudaDriver());
  const auto unusable = [&driver](absl::string_view function, CUresult result) {
    return UnsupportedError(absl::StrCat("CUDA cannot be used: ", function, " of ", driver.library,
                                         " failed: ", driver.Describe(result)));
  };
  CUresult result = driver.cuInit(0);
  if (result == CUDA_ERROR_NO_DEVICE) {
    return UnsupportedError(absl::StrCat("there is no CUDA device that ", driver.library,
                                         " shows this process; see CUDA_VISIBLE_DEVICES"));
  }
  if (result != CUDA_SUCCESS) return unusable("cuInit", result);
  int version = 0;
  result = driver.cuDriverGetVersion(&version);
  if (result != CUDA_SUCCESS) return unusable("cuDriverGetVersion", result);
  int count = 0;
  result = driver.cuDeviceGetCount(&count);
  if (result != CUDA_SUCCESS) return unusable("cuDeviceGetCount", result);
  if (count == 0) {
    return UnsupportedError(absl::StrCat("there is no CUDA device that ", driver.library,
                                         " shows this process; see CUDA_VISIBLE_DEVICES"));
  }
  return new CudaRuntime(std::move(driver), version, count);
}

CudaRuntime::CudaRuntime(CudaDriver driver, int version, int device_count)
    : driver_(std::move(driver)), version_(version), devices_(device_count) {}

absl::Status CudaRuntime::CheckNotForked() const {
  if (!fork_guard_.InChild()) return absl::OkStatus();
  return UnsupportedError(
      "CUDA does not work in a process that was forked after its parent had begun to use it; start "
      "processes by spawn or forkserver");
}

absl::StatusOr<int> CudaRuntime::ComputeCapability(const Device& device) {
  SYNCLINE_RETURN_IF_ERROR(StateOf(device).status());
  if (driver_.cuDeviceGetAttribute == nullptr) {
    return UnsupportedError(absl::StrCat(driver_.library, " has no cuDeviceGetAttribute"));
  }
  CUdevice handle = 0;
  SYNCLINE_RETURN_IF_ERROR(
      Check(driver_.cuDeviceGet(&handle, device.index), "cuDeviceGet", device));
  int numbers[2];
  for (const auto& [number, attribute] :
       {std::make_pair(&numbers[0], CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        std::make_pair(&numbers[1], CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)}) {
    SYNCLINE_RETURN_IF_ERROR(Check(driver_.cuDeviceGetAttribute(number, attribute, handle),
                                   "cuDeviceGetAttribute", device));
  }
  return 10 * numbers[0] + numbers[1];
}

absl::Status CudaRuntime::CheckKernels(const Device& device) {
  SYNCLINE_RETURN_IF_ERROR(StateOf(device).status());
  return CheckCudaKernels(driver_, device);
}

absl::StatusOr<const Kernels*> CudaRuntime::KernelsOf(const Device& device) {
  SYNCLINE_ASSIGN_OR_RETURN(DeviceState* const state, StateOf(device));
  const ContextScope scope(*this, device);
  SYNCLINE_RETURN_IF_ERROR(scope.status());
  absl::MutexLock lock(&state->kernels_mutex);
  if (!state->kernels.has_value()) {
    const RelaxedCaptureScope relaxed(*this);
    absl::StatusOr<std::unique_ptr<Kernels>> kernels = MakeCudaKernels(driver_, device);
    // What may be different at the next call, such as a lack of memory, is not kept.
    if (!kernels.ok() && KindOf(kernels.status()) != ErrorKind::kUnsupported) {
      return kernels.status();
    }
    state->kernels = std::move(kernels);
  }
  if (!state->kernels->ok()) return state->kernels->status();
  return (**state->kernels).get();
}

absl::StatusOr<Device> CudaRuntime::DeviceOf(const void* address) {
  SYNCLINE_RETURN_IF_ERROR(CheckNotForked());
  CUmemorytype type{};
  int ordinal = 0;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&type, &ordinal};
  // Needs no context, and is no error for an address that CUDA does not know.
  SYNCLINE_RETURN_IF_ERROR(
      driver_.Check(driver_.cuPointerGetAttributes(2, attributes, values, AddressOf(address)),
                    "cuPointerGetAttributes"));
  if (type != CU_MEMORYTYPE_DEVICE) return Device{};
  return Device{DeviceType::kCuda, ordinal};
}

absl::StatusOr<std::shared_ptr<void>> CudaRuntime::Allocate(const Device& device, size_t bytes) {
  const ContextScope scope(*this, device);
  SYNCLINE_RETURN_IF_ERROR(scope.status());
  if (bytes == 0) return std::shared_ptr<void>();
  CUdeviceptr address = 0;
  SYNCLINE_RETURN_IF_ERROR(
      Check(AllocateAfterReleases([&] { return driver_.cuMemAlloc(&address, bytes); }),
            absl::StrCat("cuMemAlloc of ", bytes, " bytes"), device));
  return Owned(device, reinterpret_cast<void*>(address),
               [this, address] { driver_.cuMemFree(address); });
}

absl::StatusOr<std::shared_ptr<void>> CudaRuntime::AllocatePinned(size_t bytes) {
  const Device device = AnyDevice();
  const ContextScope scope(*this, device);
  SYNCLINE_RETURN_IF_ERROR(scope.status());
  if (bytes == 0) return std::shared_ptr<void>();
  void* address = nullptr;
  SYNCLINE_RETURN_IF_ERROR(Check(AllocateAfterReleases([&] {
                                   return driver_.cuMemHostAlloc(&address, bytes,
                                                                 CU_MEMHOSTALLOC_PORTABLE);
                                 }),
                                 absl::StrCat("cuMemHostAlloc of ", bytes, " bytes"), device));
  return Owned(device, address, [this, address] { driver_.cuMemFreeHost(address); });
}

absl::StatusOr<std::shared_ptr<const Stream>> CudaRuntime::MakeStream(const Device& device,
                                                                      Priority priority) {
  const ContextScope scope(*this, device);
  SYNCLINE_RETURN_IF_ERROR(scope.status());
  const RelaxedCaptureScope relaxed(*this);
  int level = 0;  // The least one.
  if (priority == Priority::kHigh && driver_.cuCtxGetStreamPriorityRange != nullptr) {
    int least = 0;
    SYNCLINE_RETURN_IF_ERROR(Check(driver_.cuCtxGetStreamPriorityRange(&least, &level),
                                   "cuCtxGetStreamPriorityRange", device));
  }
  CUstream stream = nullptr;
  SYNCLINE_RETURN_IF_ERROR(
      Check(driver_.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, level),
            "cuStreamCreateWithPriority", device));
  return std::shared_ptr<const Stream>(new Stream{device, stream}, [this](const Stream* unused) {
    ReleaseOn(unused->device, [this, unused] { driver_.cuStreamDestroy(HandleOf(*unused)); });
    delete unused;
  });
}

absl::StatusOr<std::shared_ptr<Event>> CudaRuntime::Record(const Stream& stream) {
  const ContextScope scope(*this, stream.device);
  SYNCLINE_RETURN_IF_ERROR(scope.status());
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_captured, AskIsCapturing(stream));
  SYNCLINE_ASSIGN_OR_RETURN(const CUevent event, TakeEvent(stream.device));
  auto owned = std::make_shared<CudaEvent>(*this, stream.device, event, is_captured);
  SYNCLINE_RETURN_IF_ERROR(
      Check(driver_.cuEventRecord(event, HandleOf(stream)), "cuEventRecord", stream.device));
  return owned;
}

absl::StatusOr<bool> CudaRuntime::IsCapturing(const Stream& stream) {
  const ContextScope scope(*this, stream.device);
  SYNCLINE_RETURN_IF_ERROR(scope.status());
  return AskIsCapturing(stream);
}

absl::Status CudaRuntime::Copy(void* to, const void* from, size_t bytes, const Stream& stream) {
  const ContextScope scope(*this, stream.device);
  SYNCLINE_RETURN_IF_ERROR(scope.status());
  if (bytes == 0) return absl::OkStatus();
  return Check(driver_.cuMemcpyAsync(AddressOf(to), AddressOf(from), bytes, HandleOf(stream)),
               "cuMemcpyAsync", stream.device);
}

absl::Status CudaRuntime::Fill(void* to, unsigned char value, size_t bytes, const Stream& stream) {
  const ContextScope scope(*this, stream.device);
  SYNCLINE_RETURN_IF_ERROR(scope.status());
  if (bytes == 0) return absl::OkStatus();
  return Check(driver_.cuMemsetD8Async(AddressOf(to), value, bytes, HandleOf(stream)),
               "cuMemsetD8Async", stream.device);
}

absl::Status CudaRuntime::Synchronize(const Stream& stream, const Deadline& deadline) {
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Event> event, Record(stream));
  return StreamHandle(std::move(event)).Wait(deadline).status();
}

absl::Status CudaRuntime::PushContext(const Device& device) {
  SYNCLINE_ASSIGN_OR_RETURN(const CUcontext context, RetainContext(device));
  return Check(driver_.cuCtxPushCurrent(context), "cuCtxPushCurrent", device);
}

void CudaRuntime::PopContext() {
  CUcontext popped = nullptr;
  static_cast<void>(driver_.cuCtxPopCurrent(&popped));
}

std::optional<int> CudaRuntime::ExchangeCaptureMode(int mode) {
  if (driver_.cuThreadExchangeStreamCaptureMode == nullptr) return std::nullopt;
  auto exchanged = static_cast<CUstreamCaptureMode>(mode);
  // Where it fails, the call that follows says so, if it minds.
  if (driver_.cuThreadExchangeStreamCaptureMode(&exchanged) != CUDA_SUCCESS) return std::nullopt;
  return exchanged;
}

absl::StatusOr<CudaRuntime::DeviceState*> CudaRuntime::StateOf(const Device& device) {
  if (device.type != DeviceType::kCuda || device.index < 0 || device.index >= device_count()) {
    return ArgumentError(absl::StrCat(
        "there is no CUDA device ", ToString(device), "; this process has ", device_count(),
        device_count() == 1 ? ", cuda:0" : absl::StrCat(", cuda:0 to cuda:", device_count() - 1)));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckNotForked());
  return &devices_[device.index];
}

absl::StatusOr<CUcontext> CudaRuntime::RetainContext(const Device& device) {
  SYNCLINE_ASSIGN_OR_RETURN(DeviceState* const state, StateOf(device));
  // Acquire: pairs with the store below, so that the driver's writes to the context are seen.
  CUcontext context = state->context.load(std::memory_order_acquire);
  if (context != nullptr) return context;
  absl::MutexLock lock(&state->mutex);
  context = state->context.load(std::memory_order_relaxed);
  if (context != nullptr) return context;
  const RelaxedCaptureScope relaxed(*this);
  CUdevice handle = 0;
  SYNCLINE_RETURN_IF_ERROR(
      Check(driver_.cuDeviceGet(&handle, device.index), "cuDeviceGet", device));
  SYNCLINE_RETURN_IF_ERROR(Check(driver_.cuDevicePrimaryCtxRetain(&context, handle),
                                 "cuDevicePrimaryCtxRetain", device));
  state->context.store(context, std::memory_order_release);
  return context;
}

Device CudaRuntime::AnyDevice() const {
  CUdevice current = 0;
  if (!fork_guard_.InChild() && driver_.cuCtxGetDevice(&current) == CUDA_SUCCESS) {
    for (int index = 0; index < device_count(); ++index) {
      CUdevice handle = 0;
      if (driver_.cuDeviceGet(&handle, index) == CUDA_SUCCESS && handle == current) {
        return {DeviceType::kCuda, index};
      }
    }
  }
  for (int index = 0; index < device_count(); ++index) {
    if (devices_[index].context.load(std::memory_order_relaxed) != nullptr) {
      return {DeviceType::kCuda, index};
    }
  }
  return {DeviceType::kCuda, 0};
}

absl::Status CudaRuntime::Check(CUresult result, absl::string_view function,
                                const Device& device) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return driver_.Check(result, function, absl::StrCat("on ", ToString(device)));
}

absl::StatusOr<bool> CudaRuntime::AskIsCapturing(const Stream& stream) const {
  if (driver_.cuStreamIsCapturing == nullptr) return false;  // Older than graphs.
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver_.cuStreamIsCapturing(HandleOf(stream), &status);
  // The default stream, which cannot be captured, while another one is.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return false;
  SYNCLINE_RETURN_IF_ERROR(Check(result, "cuStreamIsCapturing", stream.device));
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

absl::StatusOr<CUevent> CudaRuntime::TakeEvent(const Device& device) {
  SYNCLINE_ASSIGN_OR_RETURN(DeviceState* const state, StateOf(device));
  {
    absl::MutexLock lock(&state->mutex);
    if (!state->idle_events.empty()) {
      const CUevent event = state->idle_events.back();
      state->idle_events.pop_back();
      return event;
    }
  }
  CUevent event = nullptr;
  SYNCLINE_RETURN_IF_ERROR(
      Check(driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate", device));
  return event;
}

void CudaRuntime::GiveBackEvent(const Device& device, CUevent event) {
  // A child of fork shares none of the driver's state; its mutexes may be locked for good.
  if (fork_guard_.InChild()) return;
  DeviceState& state = devices_[device.index];
  absl::MutexLock lock(&state.mutex);
  state.idle_events.push_back(event);
}

CUresult CudaRuntime::AllocateAfterReleases(absl::FunctionRef<CUresult()> allocate) {
  const RelaxedCaptureScope relaxed(*this);
  CUresult result = allocate();
  if (result != CUDA_ERROR_OUT_OF_MEMORY || TaskThread::Releases().IsIdle()) return result;
  TaskThread::Releases().AwaitIdle(Deadline(kReleaseTime));
  return allocate();
}

std::shared_ptr<void> CudaRuntime::Owned(const Device& device, void* memory,
                                         std::function<void()> release) {
  // Made now: whoever lets go of the memory need not have memory for it, and may be a child of
  // fork.
  TaskThread& releases = TaskThread::Releases();
  TaskThread::Tasks tasks;
  tasks.emplace_back([this, device, release = std::move(release)] { ReleaseOn(device, release); });
  return std::shared_ptr<void>(memory, [&releases, tasks = std::move(tasks)](void*) mutable {
    releases.Post(std::move(tasks));
  });
}

template <typename Release>
void CudaRuntime::ReleaseOn(const Device& device, const Release& release) {
  const ContextScope scope(*this, device);
  if (!scope.status().ok()) return;
  const RelaxedCaptureScope relaxed(*this);
  release();
}

}  // namespace syncline::device
