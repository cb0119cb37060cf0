// The functions of CUDA's driver that the stand-in for NCCL calls, of the library that the process
// has loaded already: libfake_cuda.so in tests.
#ifndef SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_DRIVER_H_
#define SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_DRIVER_H_

#include <cstddef>
#include <functional>
#include <string>

#include "core/device/cuda_types.h"

namespace fake_nccl {

using namespace syncline::device;  // NOLINT: CUDA's names, which are all that this is about.

// Each function returns false, with `error`, where the driver says no, or where there is none.
class Driver {
 public:
  // Looks for the driver until it has found it.
  static const Driver& Get();

  // The device and the context that are current on this thread.
  bool CurrentDevice(int* device, std::string* bus_id, std::string* error) const;
  bool CurrentContext(CUcontext* context, std::string* error) const;

  // Calls `body` with `context` current.
  void With(CUcontext context, const std::function<void()>& body) const;

  // Whether kernels on `device` reach the `bytes` bytes at `address`.
  bool CheckReachable(const void* address, size_t bytes, int device, std::string* error) const;

  // Enqueues a call of `function`.
  bool Launch(void* stream, void (*function)(void*), void* data, std::string* error) const;
  bool IsCapturing(void* stream) const;

  bool Allocate(size_t bytes, void** address, std::string* error) const;
  bool Free(void* address, std::string* error) const;

 private:
  bool Find();

  // The functions by CUDA's names. Null where there is none.
#define FAKE_NCCL_MEMBER(name, symbol, parameters) CUresult(*name) parameters = nullptr;
  SYNCLINE_CUDA_FUNCTIONS(FAKE_NCCL_MEMBER, FAKE_NCCL_MEMBER)
#undef FAKE_NCCL_MEMBER
};

}  // namespace fake_nccl

#endif  // SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_DRIVER_H_
