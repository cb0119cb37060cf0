#include "backends/nccl/testing/fake_nccl/driver.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>

namespace fake_nccl {

namespace {

bool Check(int result, const char* function, std::string* error) {
  if (result == 0) return true;
  *error = std::string(function) + " fails with CUDA error " + std::to_string(result);
  return false;
}

template <typename Function>
bool Has(Function* function, const char* name, std::string* error) {
  if (function != nullptr) return true;
  *error = std::string("this process has loaded no CUDA driver that has ") + name;
  return false;
}

}  // namespace

const Driver& Driver::Get() {
  static std::mutex* const mutex = new std::mutex;
  static Driver* const none = new Driver;
  static Driver* found = nullptr;
  const std::lock_guard<std::mutex> lock(*mutex);
  if (found == nullptr) {
    auto* const driver = new Driver;
    if (driver->Find()) {
      found = driver;
    } else {
      delete driver;
    }
  }
  return found == nullptr ? *none : *found;
}

bool Driver::Find() {
  void* handle = nullptr;
  if (const char* const path = std::getenv("SYNCLINE_CUDA_LIBRARY"); path != nullptr) {
    handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  }
  if (handle == nullptr) handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return false;
#define FAKE_NCCL_FIND(name, symbol, parameters) \
  name = reinterpret_cast<decltype(name)>(dlsym(handle, #symbol));
  SYNCLINE_CUDA_FUNCTIONS(FAKE_NCCL_FIND, FAKE_NCCL_FIND)
#undef FAKE_NCCL_FIND
  return true;
}

bool Driver::CurrentDevice(int* device, std::string* bus_id, std::string* error) const {
  if (!Has(cuCtxGetDevice, "cuCtxGetDevice", error) ||
      !Check(cuCtxGetDevice(device), "cuCtxGetDevice", error)) {
    return false;
  }
  char text[32] = "";
  const bool has_id =
      cuDeviceGetPCIBusId != nullptr && cuDeviceGetPCIBusId(text, sizeof text, *device) == 0;
  *bus_id = has_id ? text : "device " + std::to_string(*device);
  return true;
}

bool Driver::CurrentContext(CUcontext* context, std::string* error) const {
  return Has(cuCtxPopCurrent, "cuCtxPopCurrent", error) &&
         Has(cuCtxPushCurrent, "cuCtxPushCurrent", error) &&
         Check(cuCtxPopCurrent(context), "cuCtxPopCurrent", error) &&
         Check(cuCtxPushCurrent(*context), "cuCtxPushCurrent", error);
}

void Driver::With(CUcontext context, const std::function<void()>& body) const {
  const bool is_pushed = cuCtxPushCurrent != nullptr && cuCtxPushCurrent(context) == CUDA_SUCCESS;
  body();
  CUcontext popped;
  if (is_pushed) cuCtxPopCurrent(&popped);
}

bool Driver::CheckReachable(const void* address, size_t bytes, int device,
                            std::string* error) const {
  if (bytes == 0) return true;
  if (!Has(cuPointerGetAttributes, "cuPointerGetAttributes", error)) {
    return false;
  }
  for (const size_t offset : {size_t{0}, bytes - 1}) {
    unsigned int type = 0;
    int ordinal = -1;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void* values[] = {&type, &ordinal};
    const auto at = reinterpret_cast<uintptr_t>(address) + offset;
    if (address == nullptr || cuPointerGetAttributes(2, attributes, values, at) != 0) type = 0;
    if (type == CU_MEMORYTYPE_HOST) continue;  // Pinned.
    if (type != CU_MEMORYTYPE_DEVICE) {
      *error = "a buffer, or its last byte, is not memory that a device reaches";
      return false;
    }
    if (ordinal != device) {
      *error = "a buffer is on device " + std::to_string(ordinal) +
               ", and the communicator on device " + std::to_string(device);
      return false;
    }
  }
  return true;
}

bool Driver::Launch(void* stream, void (*function)(void*), void* data, std::string* error) const {
  return Has(cuLaunchHostFunc, "cuLaunchHostFunc", error) &&
         Check(cuLaunchHostFunc(static_cast<CUstream>(stream), function, data), "cuLaunchHostFunc",
               error);
}

bool Driver::IsCapturing(void* stream) const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return cuStreamIsCapturing != nullptr &&
         cuStreamIsCapturing(static_cast<CUstream>(stream), &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool Driver::Allocate(size_t bytes, void** address, std::string* error) const {
  CUdeviceptr made = 0;
  if (!Has(cuMemAlloc, "cuMemAlloc", error) ||
      !Check(cuMemAlloc(&made, bytes), "cuMemAlloc", error)) {
    return false;
  }
  *address = reinterpret_cast<void*>(static_cast<uintptr_t>(made));
  return true;
}

bool Driver::Free(void* address, std::string* error) const {
  return Has(cuMemFree, "cuMemFree", error) &&
         Check(cuMemFree(reinterpret_cast<uintptr_t>(address)), "cuMemFree", error);
}

}  // namespace fake_nccl
