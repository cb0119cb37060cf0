// The functions of CUDA's driver that the stand-in for NCCL calls, of the library that the process
// has loaded already: libfake_cuda.so in tests.
#ifndef SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_DRIVER_H_
#define SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_DRIVER_H_

#include <cstddef>
#include <functional>
#include <string>

namespace fake_nccl {

// Each function returns false, with `error`, where the driver says no, or where there is none.
class Driver {
 public:
  // Looks for the driver until it has found it.
  static const Driver& Get();

  // The device and the context that are current on this thread.
  bool CurrentDevice(int* device, std::string* bus_id, std::string* error) const;
  bool CurrentContext(void** context, std::string* error) const;

  // Calls `body` with `context` current. Not if it is null.
  void With(void* context, const std::function<void()>& body) const;

  // Whether kernels on `device` reach the `bytes` bytes at `address`.
  bool CheckReachable(const void* address, size_t bytes, int device, std::string* error) const;

  // Enqueues a call of `function`.
  bool Launch(void* stream, void (*function)(void*), void* data, std::string* error) const;
  bool IsCapturing(void* stream) const;

  bool Allocate(size_t bytes, void** address, std::string* error) const;
  bool Free(void* address, std::string* error) const;

 private:
  using DevicePointer = unsigned long long;  // NOLINT: CUDA's type.

  bool Find();

  int (*ctx_get_device_)(int* device) = nullptr;
  int (*ctx_push_)(void* context) = nullptr;
  int (*ctx_pop_)(void** context) = nullptr;
  int (*device_get_pci_bus_id_)(char* id, int length, int device) = nullptr;
  int (*pointer_get_attributes_)(unsigned int count, int* attributes, void** values,
                                 DevicePointer address) = nullptr;
  int (*launch_host_func_)(void* stream, void (*function)(void*), void* data) = nullptr;
  int (*stream_is_capturing_)(void* stream, int* status) = nullptr;
  int (*mem_alloc_)(DevicePointer* address, size_t bytes) = nullptr;
  int (*mem_free_)(DevicePointer address) = nullptr;
};

}  // namespace fake_nccl

#endif  // SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_DRIVER_H_
