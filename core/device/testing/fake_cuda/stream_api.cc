// Streams, events and functions of the host.
#include <memory>
#include <utility>
#include <vector>

#include "core/device/testing/fake_cuda/call.h"

using namespace fake_cuda;  // NOLINT: defines the C functions below.

extern "C" {

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  FAKE_CUDA_BEGIN(kContext);
  if (flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  const uintptr_t handle = simulator.NewHandle();
  StreamPtr& made = simulator.streams[handle];
  made = std::make_shared<Stream>();
  made->device = call.device();
  made->priority = priority < kGreatestPriority ? kGreatestPriority : priority > 0 ? 0 : priority;
  made->kind = flags == CU_STREAM_NON_BLOCKING ? StreamKind::kNonBlocking : StreamKind::kBlocking;
  *stream = reinterpret_cast<CUstream>(handle);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  FAKE_CUDA_BEGIN(kInit);
  const auto found = simulator.streams.find(reinterpret_cast<uintptr_t>(stream));
  if (found == simulator.streams.end()) return CUDA_ERROR_INVALID_HANDLE;
  // Its work goes on; the thread holds the stream until then.
  found->second->is_destroyed = true;
  found->second->has_news.notify_all();
  simulator.streams.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  FAKE_CUDA_BEGIN(kInit);
  const StreamPtr found = call.Find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *priority = found->priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  FAKE_CUDA_BEGIN(kInit);
  const StreamPtr found = call.Find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *context = simulator.ContextOf(found->device);
  return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream) {
  FAKE_CUDA_BEGIN(kInit);
  const StreamPtr found = call.Find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult refused = CheckNotCaptured(simulator, found)) return refused;
  if (const CUresult refused = CheckNoCapture(simulator)) return refused;
  if (const CUresult error = simulator.devices[found->device].error) return error;
  const bool is_done =
      (found->last == nullptr || found->last->is_reached) && simulator.EndsBefore(found).empty();
  return is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream stream) {
  FAKE_CUDA_BEGIN(kInit);
  const StreamPtr found = call.Find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult refused = CheckNotCaptured(simulator, found)) return refused;
  if (const CUresult refused = CheckNoCapture(simulator)) return refused;
  std::vector<PointPtr> ends = simulator.EndsBefore(found);
  if (found->last != nullptr) ends.push_back(found->last);
  for (const PointPtr& end : ends) end->Await(call.lock());
  return simulator.devices[found->device].error;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  FAKE_CUDA_BEGIN(kInit);
  const StreamPtr found = call.Find(stream);
  const std::shared_ptr<Event> awaited = call.Find(event);
  if (found == nullptr || awaited == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  bool is_captured = false;
  const CUresult result = CaptureWait(found, *awaited, &is_captured);
  if (is_captured) return result;
  if (awaited->point == nullptr || awaited->point->is_reached) {
    return simulator.devices[found->device].error;
  }
  return Submit(simulator, found, nullptr, {awaited->point});
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  FAKE_CUDA_BEGIN(kContext);
  if ((flags & ~3U) != 0) return CUDA_ERROR_INVALID_VALUE;
  const uintptr_t handle = simulator.NewHandle();
  std::shared_ptr<Event>& made = simulator.events[handle];
  made = std::make_shared<Event>();
  made->device = call.device();
  *event = reinterpret_cast<CUevent>(handle);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  FAKE_CUDA_BEGIN(kInit);
  if (simulator.events.erase(reinterpret_cast<uintptr_t>(event)) == 0) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  FAKE_CUDA_BEGIN(kContext);
  const StreamPtr found = call.Find(stream);
  const std::shared_ptr<Event> recorded = call.Find(event);
  if (found == nullptr || recorded == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (found->device != recorded->device) return CUDA_ERROR_INVALID_HANDLE;
  bool is_captured = false;
  const CUresult refused = CaptureRecord(*recorded, *found, &is_captured);
  if (is_captured || refused != CUDA_SUCCESS) return refused;
  const CUresult result = Submit(simulator, found, nullptr);
  if (result != CUDA_SUCCESS) return result;
  recorded->point = found->last;
  recorded->capture = nullptr;
  recorded->frontier.clear();
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  FAKE_CUDA_BEGIN(kInit);
  const std::shared_ptr<Event> asked = call.Find(event);
  if (asked == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (asked->capture != nullptr) {
    asked->capture->is_invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  if (const CUresult refused = CheckNoCapture(simulator)) return refused;
  if (const CUresult error = simulator.devices[asked->device].error) return error;
  return asked->point == nullptr || asked->point->is_reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  FAKE_CUDA_BEGIN(kInit);
  const std::shared_ptr<Event> awaited = call.Find(event);
  if (awaited == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (awaited->capture != nullptr) {
    awaited->capture->is_invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  if (const CUresult refused = CheckNoCapture(simulator)) return refused;
  const PointPtr point = awaited->point;
  if (point != nullptr) point->Await(call.lock());
  return simulator.devices[awaited->device].error;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  FAKE_CUDA_BEGIN(kInit);
  const StreamPtr found = call.Find(stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Submit(simulator, found, [function, data] { function(data); });
}

}  // extern "C"
