// Lets a C++ test run on simulated devices: depending on :fake_cuda_env is enough. With
// :real_devices in its place the same test runs on those of the machine (device_test.bzl).
#ifndef SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_ENV_H_
#define SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_ENV_H_

#include "core/device/cuda_types.h"
#include "core/device/testing/fake_cuda/fake_cuda.h"
#include "gtest/gtest.h"

// Skips the test where devices are the machine's: for what only simulated ones do when told, such
// as to stand still, to fail, and to count what is not given back.
#define SYNCLINE_REQUIRE_SIMULATED_DEVICES() \
  if (!::syncline::device::DevicesAreSimulated()) GTEST_SKIP() << "needs simulated devices"

namespace syncline::device {

// Whether the test was linked with :fake_cuda_env, not :real_devices.
bool DevicesAreSimulated();

// The functions of fake_cuda.h, in the library that SYNCLINE_CUDA_LIBRARY names. That is
// libfake_cuda.so, from before main() on, unless it was set already. Ends the process if the
// library cannot be opened. Where devices are the machine's, there are the driver's functions
// alone, and a call of another one ends the process.
struct FakeCuda {
  static const FakeCuda& Get();

  decltype(&fake_cuda_fail_next) fail_next;
  decltype(&fake_cuda_calls) calls;
  decltype(&fake_cuda_each_called) each_called;
  decltype(&fake_cuda_hold_streams) hold_streams;
  decltype(&fake_cuda_delay_us) delay_us;
  decltype(&fake_cuda_free_waits) free_waits;
  decltype(&fake_cuda_break_device) break_device;
  decltype(&fake_cuda_live_objects) live_objects;
  decltype(&fake_cuda_context_depth) context_depth;
  decltype(&fake_cuda_register_kernel) register_kernel;

  // A function of the driver's API, by its symbol.
  template <typename Function>
  Function* Driver(const char* symbol) const {
    return reinterpret_cast<Function*>(Symbol(symbol));
  }

  fake_cuda_counts Counts() const {
    fake_cuda_counts counts;
    live_objects(&counts);
    return counts;
  }

 private:
  FakeCuda();
  void* Symbol(const char* name) const;

  void* library_;
};

// Waits until a device has done all work that it was given, which may hold memory until then.
inline void AwaitDevice(int index) {
  const FakeCuda& fake = FakeCuda::Get();
  CUcontext context = nullptr;
  fake.Driver<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context, index);
  fake.Driver<CUresult(CUcontext)>("cuCtxPushCurrent_v2")(context);
  fake.Driver<CUresult()>("cuCtxSynchronize")();
  fake.Driver<CUresult(CUcontext*)>("cuCtxPopCurrent_v2")(&context);
  fake.Driver<CUresult(CUdevice)>("cuDevicePrimaryCtxRelease_v2")(index);
}

// Keeps the streams of a device from beginning an item, for as long as it lives.
class HeldStreams {
 public:
  explicit HeldStreams(int device = 0) : device_(device) {
    FakeCuda::Get().hold_streams(device_, 1);
  }
  ~HeldStreams() { FakeCuda::Get().hold_streams(device_, 0); }
  HeldStreams(const HeldStreams&) = delete;
  HeldStreams& operator=(const HeldStreams&) = delete;

 private:
  const int device_;
};

// Has cuMemFree wait for all work of the device, for as long as it lives.
class WaitingFrees {
 public:
  WaitingFrees() : former_(FakeCuda::Get().free_waits(1)) {}
  ~WaitingFrees() { FakeCuda::Get().free_waits(former_); }
  WaitingFrees(const WaitingFrees&) = delete;
  WaitingFrees& operator=(const WaitingFrees&) = delete;

 private:
  const int former_;
};

}  // namespace syncline::device

#endif  // SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_ENV_H_
