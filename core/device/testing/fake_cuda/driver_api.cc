// Devices, contexts, streams, events and kernels.
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "core/device/testing/fake_cuda/call.h"

using namespace fake_cuda;  // NOLINT: defines the C functions below.

namespace {

struct ErrorText {
  CUresult error;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ErrorText* TextOf(CUresult error) {
  for (const ErrorText& known : kErrors) {
    if (known.error == error) return &known;
  }
  return nullptr;
}

bool IsDevice(const Simulator& simulator, CUdevice device) {
  return device >= 0 && device < static_cast<int>(simulator.devices.size());
}

}  // namespace

extern "C" {

// Errors may be described anywhere, so these are not counted as calls.
CUresult cuGetErrorName(CUresult error, const char** name) {
  const ErrorText* const found = TextOf(error);
  *name = found == nullptr ? nullptr : found->name;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  const ErrorText* const found = TextOf(error);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  FAKE_CUDA_BEGIN(kNothing);
  *version = simulator.version;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  FAKE_CUDA_BEGIN(kInit);
  *count = static_cast<int>(simulator.devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  FAKE_CUDA_BEGIN(kInit);
  if (!IsDevice(simulator, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  FAKE_CUDA_BEGIN(kInit);
  if (!IsDevice(simulator, device)) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = 1024;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 4;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *value = simulator.devices[device].physical + 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      *value = 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  FAKE_CUDA_BEGIN(kInit);
  if (!IsDevice(simulator, device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(length), "simulated device %d",
                simulator.devices[device].physical);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  FAKE_CUDA_BEGIN(kInit);
  if (!IsDevice(simulator, device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0",
                simulator.devices[device].physical + 1);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  FAKE_CUDA_BEGIN(kInit);
  if (!IsDevice(simulator, device)) return CUDA_ERROR_INVALID_DEVICE;
  ++simulator.devices[device].references;
  *context = simulator.ContextOf(device);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  FAKE_CUDA_BEGIN(kInit);
  if (!IsDevice(simulator, device)) return CUDA_ERROR_INVALID_DEVICE;
  if (simulator.devices[device].references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --simulator.devices[device].references;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  FAKE_CUDA_BEGIN(kInit);
  if (context == nullptr || simulator.DeviceOf(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  FAKE_CUDA_BEGIN(kInit);
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  FAKE_CUDA_BEGIN(kInit);
  if (context != nullptr && simulator.DeviceOf(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (!contexts.empty()) contexts.pop_back();
  if (context != nullptr) contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  FAKE_CUDA_BEGIN(kInit);
  *context = contexts.empty() ? nullptr : contexts.back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  FAKE_CUDA_BEGIN(kInit);
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = call.device();
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  FAKE_CUDA_BEGIN(kNoCapture);
  std::vector<PointPtr> ends;
  const int device = call.device();
  const auto add = [&ends](const StreamPtr& stream) {
    if (stream->last != nullptr) ends.push_back(stream->last);
  };
  add(simulator.devices[device].legacy);
  for (const auto& [thread, stream] : simulator.devices[device].per_thread) add(stream);
  for (const auto& [handle, stream] : simulator.streams) {
    if (stream->device == device) add(stream);
  }
  for (const PointPtr& end : ends) end->Await(call.lock());
  return simulator.devices[device].error;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_CUDA_BEGIN(kContext);
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  FAKE_CUDA_BEGIN(kContext);
  static_cast<void>(priority);  // CUDA takes those that are out of range too.
  if (flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  const uintptr_t handle = simulator.NewHandle();
  StreamPtr& made = simulator.streams[handle];
  made = std::make_shared<Stream>();
  made->device = call.device();
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

// The list of functions that the product calls declares them as they are defined here.
#define FAKE_CUDA_CHECK(name, symbol, parameters) \
  CUresult symbol parameters;                     \
  static_assert(std::is_same_v<decltype(&symbol), CUresult(*) parameters>);
SYNCLINE_CUDA_FUNCTIONS(FAKE_CUDA_CHECK, FAKE_CUDA_CHECK)
#undef FAKE_CUDA_CHECK

void fake_cuda_hold_streams(int device, int on) {
  Simulator& simulator = Simulator::Get();
  const Lock lock(simulator.mutex);
  simulator.devices.at(device).is_held = on != 0;
  simulator.resumed.notify_all();
}

void fake_cuda_delay_us(int64_t most) { Simulator::Get().delay_us = most; }

void fake_cuda_break_device(int device, int result) {
  Simulator& simulator = Simulator::Get();
  const Lock lock(simulator.mutex);
  simulator.devices.at(device).error = static_cast<CUresult>(result);
}

void fake_cuda_live_objects(fake_cuda_counts* counts) {
  Simulator& simulator = Simulator::Get();
  const Lock lock(simulator.mutex);
  *counts = {};
  for (const Device& device : simulator.devices) counts->contexts += device.references > 0 ? 1 : 0;
  counts->streams = static_cast<int64_t>(simulator.streams.size());
  counts->events = static_cast<int64_t>(simulator.events.size());
  for (const auto& [address, allocation] : simulator.memory) {
    const bool is_of_device =
        allocation.kind == MemoryKind::kDevice || allocation.kind == MemoryKind::kManaged;
    ++(is_of_device ? counts->device_allocations : counts->pinned_allocations);
  }
  counts->libraries = static_cast<int64_t>(simulator.libraries.size());
  counts->graphs = static_cast<int64_t>(simulator.graphs.size() + simulator.graph_execs.size());
  counts->pending_items = simulator.pending_items;
}

}  // extern "C"
