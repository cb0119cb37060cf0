#include "backends/nccl/testing/fake_nccl/driver.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>

namespace fake_nccl {
namespace {

// CUDA's values.
constexpr int kMemoryType = 2;     // CU_POINTER_ATTRIBUTE_MEMORY_TYPE.
constexpr int kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL.
constexpr int kHostMemory = 1;     // CU_MEMORYTYPE_HOST: pinned.
constexpr int kDeviceMemory = 2;   // CU_MEMORYTYPE_DEVICE.

bool Check(int result, const char* function, std::string* error) {
  if (result == 0) return true;
  *error = std::string(function) + " fails with CUDA error " + std::to_string(result);
  return false;
}

bool Has(const void* function, const char* name, std::string* error) {
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
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
  };
  find(ctx_get_device_, "cuCtxGetDevice");
  find(ctx_push_, "cuCtxPushCurrent_v2");
  find(ctx_pop_, "cuCtxPopCurrent_v2");
  find(device_get_pci_bus_id_, "cuDeviceGetPCIBusId");
  find(pointer_get_attributes_, "cuPointerGetAttributes");
  find(launch_host_func_, "cuLaunchHostFunc");
  find(stream_is_capturing_, "cuStreamIsCapturing");
  find(mem_alloc_, "cuMemAlloc_v2");
  find(mem_free_, "cuMemFree_v2");
  return true;
}

bool Driver::CurrentDevice(int* device, std::string* bus_id, std::string* error) const {
  if (!Has(reinterpret_cast<void*>(ctx_get_device_), "cuCtxGetDevice", error) ||
      !Check(ctx_get_device_(device), "cuCtxGetDevice", error)) {
    return false;
  }
  char text[32] = "";
  const bool has_id =
      device_get_pci_bus_id_ != nullptr && device_get_pci_bus_id_(text, sizeof text, *device) == 0;
  *bus_id = has_id ? text : "device " + std::to_string(*device);
  return true;
}

bool Driver::CurrentContext(void** context, std::string* error) const {
  return Has(reinterpret_cast<void*>(ctx_pop_), "cuCtxPopCurrent", error) &&
         Has(reinterpret_cast<void*>(ctx_push_), "cuCtxPushCurrent", error) &&
         Check(ctx_pop_(context), "cuCtxPopCurrent", error) &&
         Check(ctx_push_(*context), "cuCtxPushCurrent", error);
}

void Driver::With(void* context, const std::function<void()>& body) const {
  const bool is_pushed = context != nullptr && ctx_push_ != nullptr && ctx_push_(context) == 0;
  body();
  void* popped;
  if (is_pushed) ctx_pop_(&popped);
}

bool Driver::CheckReachable(const void* address, size_t bytes, int device,
                            std::string* error) const {
  if (bytes == 0) return true;
  if (!Has(reinterpret_cast<void*>(pointer_get_attributes_), "cuPointerGetAttributes", error)) {
    return false;
  }
  for (const size_t offset : {size_t{0}, bytes - 1}) {
    int type = 0;
    int ordinal = -1;
    int attributes[] = {kMemoryType, kDeviceOrdinal};
    void* values[] = {&type, &ordinal};
    const auto at = reinterpret_cast<uintptr_t>(address) + offset;
    if (address == nullptr || pointer_get_attributes_(2, attributes, values, at) != 0) type = 0;
    if (type == kHostMemory) continue;
    if (type != kDeviceMemory) {
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
  return Has(reinterpret_cast<void*>(launch_host_func_), "cuLaunchHostFunc", error) &&
         Check(launch_host_func_(stream, function, data), "cuLaunchHostFunc", error);
}

bool Driver::IsCapturing(void* stream) const {
  int status = 0;
  return stream_is_capturing_ != nullptr && stream_is_capturing_(stream, &status) == 0 &&
         status != 0;
}

bool Driver::Allocate(size_t bytes, void** address, std::string* error) const {
  DevicePointer made = 0;
  if (!Has(reinterpret_cast<void*>(mem_alloc_), "cuMemAlloc", error) ||
      !Check(mem_alloc_(&made, bytes), "cuMemAlloc", error)) {
    return false;
  }
  *address = reinterpret_cast<void*>(static_cast<uintptr_t>(made));
  return true;
}

bool Driver::Free(void* address, std::string* error) const {
  return Has(reinterpret_cast<void*>(mem_free_), "cuMemFree", error) &&
         Check(mem_free_(reinterpret_cast<uintptr_t>(address)), "cuMemFree", error);
}

}  // namespace fake_nccl
