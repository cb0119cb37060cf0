// Errors, devices and contexts.
#include <cstdio>
#include <type_traits>
#include <vector>

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

CUresult cuInit(unsigned int flags) {
  FAKE_CUDA_BEGIN(kNothing);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (simulator.devices.empty()) return CUDA_ERROR_NO_DEVICE;
  if (!simulator.is_initialized) {
    simulator.is_initialized = true;
    WatchForks();
  }
  return CUDA_SUCCESS;
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
      *value = 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = simulator.compute_capability % 10;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      *value = 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = simulator.compute_capability / 10;
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
  *greatest = kGreatestPriority;
  return CUDA_SUCCESS;
}

// The list of functions that the product calls declares them as they are defined here.
#define FAKE_CUDA_CHECK(name, symbol, parameters) \
  CUresult symbol parameters;                     \
  static_assert(std::is_same_v<decltype(&symbol), CUresult(*) parameters>);
SYNCLINE_CUDA_FUNCTIONS(FAKE_CUDA_CHECK, FAKE_CUDA_CHECK)
#undef FAKE_CUDA_CHECK

}  // extern "C"
