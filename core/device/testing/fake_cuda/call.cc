#include "core/device/testing/fake_cuda/call.h"

#include <pthread.h>

#include <atomic>
#include <thread>

namespace fake_cuda {
namespace {

// Whether the process was forked after cuInit.
std::atomic<bool> was_forked{false};

}  // namespace

thread_local std::vector<CUcontext> contexts;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void WatchForks() {
  pthread_atfork(nullptr, nullptr, [] { was_forked = true; });
}

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
