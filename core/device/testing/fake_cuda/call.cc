#include "core/device/testing/fake_cuda/call.h"

#include <pthread.h>

#include <string>
#include <thread>

namespace fake_cuda {
namespace {

// Whether the process was forked after the library was initialized.
std::atomic<bool> was_forked{false};

}  // namespace

thread_local std::vector<CUcontext> contexts;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

Call::Call(const char* function, Needs needs) : simulator_(Simulator::Get()) {
  if (was_forked) {
    // Another thread may have had the mutex at the fork.
    refusal_ = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  if (is_in_host_function) {
    refusal_ = CUDA_ERROR_NOT_PERMITTED;
    return;
  }
  lock_ = Lock(simulator_.mutex);
  refusal_ = Refuse(function, needs);
}

CUresult Call::Refuse(const char* function, Needs needs) {
  const int64_t number = ++simulator_.calls[function];
  const auto faults = simulator_.faults.find(function);
  if (faults != simulator_.faults.end()) {
    const auto fault = faults->second.find(number);
    if (fault != faults->second.end()) {
      const CUresult result = fault->second;
      faults->second.erase(fault);
      return result;
    }
  }
  if (needs >= Needs::kInit && !simulator_.is_initialized) return CUDA_ERROR_NOT_INITIALIZED;
  if (needs >= Needs::kContext) {
    if (contexts.empty() || simulator_.devices[device()].references == 0) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (simulator_.devices[device()].error != CUDA_SUCCESS) {
      return simulator_.devices[device()].error;
    }
  }
  return needs >= Needs::kNoCapture ? CheckNoCapture(simulator_) : CUDA_SUCCESS;
}

StreamPtr Call::Find(CUstream handle) {
  const uintptr_t number = reinterpret_cast<uintptr_t>(handle);
  if (number == 0 || number == CU_STREAM_LEGACY || number == CU_STREAM_PER_THREAD) {
    if (contexts.empty()) return nullptr;
    Device& current = simulator_.devices[device()];
    if (number != CU_STREAM_PER_THREAD) return current.legacy;
    StreamPtr& own = current.per_thread[std::this_thread::get_id()];
    if (own == nullptr) {
      own = std::make_shared<Stream>();
      own->device = device();
      own->kind = StreamKind::kBlocking;
    }
    return own;
  }
  const auto found = simulator_.streams.find(number);
  return found == simulator_.streams.end() ? nullptr : found->second;
}

std::shared_ptr<Event> Call::Find(CUevent handle) {
  const auto found = simulator_.events.find(reinterpret_cast<uintptr_t>(handle));
  return found == simulator_.events.end() ? nullptr : found->second;
}

}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT: defines the C functions below.

extern "C" {

CUresult cuInit(unsigned int flags) {
  FAKE_CUDA_BEGIN(kNothing);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (simulator.devices.empty()) return CUDA_ERROR_NO_DEVICE;
  if (!simulator.is_initialized) {
    simulator.is_initialized = true;
    pthread_atfork(nullptr, nullptr, [] { was_forked = true; });
  }
  return CUDA_SUCCESS;
}

void fake_cuda_fail_next(const char* function, int nth, int result) {
  Simulator& simulator = Simulator::Get();
  const Lock lock(simulator.mutex);
  if (nth == 0) {
    simulator.faults.erase(function);
    return;
  }
  simulator.faults[function][simulator.calls[function] + nth] = static_cast<CUresult>(result);
}

int64_t fake_cuda_calls(const char* function) {
  Simulator& simulator = Simulator::Get();
  const Lock lock(simulator.mutex);
  return simulator.calls[function];
}

void fake_cuda_each_called(void (*visit)(const char* function, void* data), void* data) {
  std::vector<std::string> names;
  {
    Simulator& simulator = Simulator::Get();
    const Lock lock(simulator.mutex);
    for (const auto& [name, count] : simulator.calls) {
      if (count > 0) names.push_back(name);
    }
  }
  for (const std::string& name : names) visit(name.c_str(), data);
}

int fake_cuda_context_depth() { return static_cast<int>(contexts.size()); }

}  // extern "C"
