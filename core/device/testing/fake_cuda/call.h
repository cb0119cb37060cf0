// What all functions of libfake_cuda.so begin with.
#ifndef SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_CALL_H_
#define SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_CALL_H_

#include <memory>
#include <vector>

#include "core/device/testing/fake_cuda/simulator.h"

namespace fake_cuda {

// What a call requires. Each one requires what those before it do.
enum class Needs {
  kNothing,
  kInit,
  kContext,    // A current context, of a device that works.
  kNoCapture,  // That no capture forbids calls of its kind.
};

// The contexts that are current on this thread, the innermost last.
extern thread_local std::vector<CUcontext> contexts;

// What cuThreadExchangeStreamCaptureMode has set on this thread.
extern thread_local CUstreamCaptureMode capture_mode;

// A call in progress; holds the simulator's mutex.
//
//   const Call call("cuEventQuery", Needs::kInit);
//   if (call.refusal() != CUDA_SUCCESS) return call.refusal();
class Call {
 public:
  Call(const char* function, Needs needs);

  // Why the call fails, or CUDA_SUCCESS.
  CUresult refusal() const { return refusal_; }

  Lock& lock() { return lock_; }
  Simulator& simulator() { return simulator_; }

  // That of the current context. Requires Needs::kContext.
  int device() const { return simulator_.DeviceOf(contexts.back()); }

  // The stream for a handle, or null.
  StreamPtr Find(CUstream handle);
  std::shared_ptr<Event> Find(CUevent handle);

 private:
  CUresult Refuse(const char* function, Needs needs);

  Simulator& simulator_;
  Lock lock_;
  CUresult refusal_;
};

// From now on, calls in a child of fork fail.
void WatchForks();

// Enqueues `work` as a call on `stream` does: where the stream is captured, its graph gets it.
CUresult Submit(Simulator& simulator, const StreamPtr& stream, std::function<void()> work,
                std::vector<PointPtr> after = {});

// CUDA_SUCCESS unless a capture that is going on forbids this thread what may depend on captured
// work; such captures are invalid then.
CUresult CheckNoCapture(Simulator& simulator);

// CUDA_SUCCESS unless `stream` is captured, or is the default stream while one is captured that
// waits for it; the capture is invalid then.
CUresult CheckNotCaptured(Simulator& simulator, const StreamPtr& stream);

// cuEventRecord and cuStreamWaitEvent, where one of the two is captured. `is_captured` says whether
// that is so.
CUresult CaptureRecord(Event& event, Stream& stream, bool* is_captured);
CUresult CaptureWait(const StreamPtr& stream, const Event& event, bool* is_captured);

}  // namespace fake_cuda

// Begins a function: `call` is its Call.
#define FAKE_CUDA_BEGIN(needs)                                 \
  ::fake_cuda::Call call(__func__, ::fake_cuda::Needs::needs); \
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();   \
  ::fake_cuda::Simulator& simulator = call.simulator();        \
  static_cast<void>(simulator)

#endif  // SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_CALL_H_
