// The devices of this process: memory, streams, events and copies, over CUDA's driver API.
#ifndef SYNCLINE_CORE_DEVICE_DEVICE_RUNTIME_H_
#define SYNCLINE_CORE_DEVICE_DEVICE_RUNTIME_H_

#include <cstddef>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "syncline/deadline.h"
#include "syncline/device.h"
#include "syncline/stream.h"

namespace syncline::device {

class Kernels;  // kernels.h

// A point in the work of a stream, from DeviceRuntime::Record. Thread-safe. Whoever holds it may
// ask, and have streams wait for it, at any time; the last one to let go gives it back for reuse.
class Event {
 public:
  virtual ~Event() = default;

  virtual const Device& device() const = 0;

  // Whether all work before the event has ended. The error of the device if that has failed.
  virtual absl::StatusOr<bool> IsDone() const = 0;

  // Makes work that is enqueued on `stream` from now on, which may be another device's, begin after
  // the event. Does not wait.
  virtual absl::Status EnqueueWait(const Stream& stream) const = 0;
};

// What the process can do with its devices. There is one runtime, of the driver library that
// SYNCLINE_CUDA_LIBRARY names, if it is set, else of libcuda.so.1, which may be loaded already.
// Tests set the former to a library that simulates devices (testing/fake_cuda).
//
// Thread-safe. Functions make the primary context of a device, which torch, JAX, CuPy and CUDA's
// runtime share, current for their own duration, and leave the calling thread's context as it was.
// Errors are BackendErrors with the driver's name of the error and the device, and ArgumentErrors
// for a device that the process does not have. No function waits for the device, unless it says so.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  // The runtime, which lives as long as the process. UnsupportedError that says why, where there is
  // no driver library, no device, or where the process was forked after the first call. The answer
  // stays the same: the machine is asked once.
  static absl::StatusOr<DeviceRuntime*> Get();

  // Whether Get was called and there is a runtime: for code that must not load the driver.
  static bool IsLoaded();

  virtual int device_count() const = 0;

  // Of the driver, as CUDA counts: 13000 for 13.0.
  virtual int driver_version() const = 0;

  // The compute capability of `device`, as 90 for 9.0. UnsupportedError where the driver is too old
  // to tell.
  virtual absl::StatusOr<int> ComputeCapability(const Device& device) = 0;

  // OK if our kernels can be loaded on `device`, as far as the driver and the device tell;
  // UnsupportedError that says what is missing, such as a newer driver. Makes no context.
  virtual absl::Status CheckKernels(const Device& device) = 0;

  // Our kernels on `device`, which the first call loads. Errors: those of CheckKernels and of
  // loading.
  virtual absl::StatusOr<const Kernels*> KernelsOf(const Device& device) = 0;

  // The device whose memory `address` is in. Memory of the host, pinned or not, is the CPU's.
  virtual absl::StatusOr<Device> DeviceOf(const void* address) = 0;

  // Memory of `device`, 256-byte aligned and not set to anything, which is given back when the last
  // owner lets go of it: its work must have ended then. CUDA may wait for all work of the device
  // then, so TaskThread::Releases() does it, soon after. Where there is no memory left this waits
  // ten seconds at most for what is being given back. `bytes` may be 0.
  virtual absl::StatusOr<std::shared_ptr<void>> Allocate(const Device& device, size_t bytes) = 0;

  // The same of page-locked memory of the host, which all devices reach.
  virtual absl::StatusOr<std::shared_ptr<void>> AllocatePinned(size_t bytes) = 0;

  // A new stream, which does not wait for the default stream, and which is destroyed by its last
  // owner: work on it goes on until it has ended. kHigh lets its kernels go first.
  enum class Priority { kDefault, kHigh };
  virtual absl::StatusOr<std::shared_ptr<const Stream>> MakeStream(
      const Device& device, Priority priority = Priority::kDefault) = 0;

  // An event behind what has been enqueued on `stream` so far. While a graph is captured from the
  // stream, the event is part of the capture, and its IsDone is an error.
  virtual absl::StatusOr<std::shared_ptr<Event>> Record(const Stream& stream) = 0;

  // Whether work on `stream` is at present captured into a graph, rather than done.
  virtual absl::StatusOr<bool> IsCapturing(const Stream& stream) = 0;

  // Enqueues a copy between any two of: memory of this or another device, of the host (copies of
  // pageable memory may wait).
  virtual absl::Status Copy(void* to, const void* from, size_t bytes, const Stream& stream) = 0;

  // Enqueues that `bytes` bytes become `value`.
  virtual absl::Status Fill(void* to, unsigned char value, size_t bytes, const Stream& stream) = 0;

  // Waits on the host until what has been enqueued on `stream` so far has ended. TimeoutError at
  // the deadline, InterruptedError if this thread is interrupted.
  virtual absl::Status Synchronize(const Stream& stream, const Deadline& deadline) = 0;

  // Makes the primary context of `device` current on this thread; what was current becomes so again
  // when the scope ends. For libraries that work on the current device, such as NCCL.
  class ContextScope {
   public:
    ContextScope(DeviceRuntime& runtime, const Device& device)
        : runtime_(runtime), status_(runtime.PushContext(device)) {}
    ~ContextScope() {
      if (status_.ok()) runtime_.PopContext();
    }
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;

    // Whether the context is current.
    const absl::Status& status() const { return status_; }

   private:
    DeviceRuntime& runtime_;
    const absl::Status status_;
  };

  // Lets this thread make calls that CUDA forbids while any thread of the process captures a graph
  // in the mode that torch uses, since they may depend on work that is captured: for calls that do
  // not, such as those that allocate and free. The functions of this class do so themselves; it is
  // for libraries, such as NCCL.
  class RelaxedCaptureScope {
   public:
    explicit RelaxedCaptureScope(DeviceRuntime& runtime)
        : runtime_(runtime), former_(runtime.ExchangeCaptureMode(kRelaxed)) {}
    ~RelaxedCaptureScope() {
      if (former_.has_value()) runtime_.ExchangeCaptureMode(*former_);
    }
    RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
    RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;

   private:
    static constexpr int kRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED.

    DeviceRuntime& runtime_;
    const std::optional<int> former_;
  };

 protected:
  virtual absl::Status PushContext(const Device& device) = 0;
  virtual void PopContext() = 0;
  // Sets this thread's mode of captures, as CUDA numbers them. Returns the former one; nothing
  // where the driver has none.
  virtual std::optional<int> ExchangeCaptureMode(int mode) = 0;
};

}  // namespace syncline::device

#endif  // SYNCLINE_CORE_DEVICE_DEVICE_RUNTIME_H_
