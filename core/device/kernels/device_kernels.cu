// The kernels, for devices: nvcc compiles this file, and nothing of it for the host.
#include "core/device/kernels/kernel_list.h"

namespace syncline::device::kernels {
namespace {

__device__ Thread Here() { return {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x}; }

}  // namespace

#define SYNCLINE_DEFINE(name, ...)                                                          \
  extern "C" __global__ void __launch_bounds__(kThreads)                                    \
      name(const __grid_constant__ __VA_ARGS__::Args args) {                                \
    __VA_ARGS__::Run(args, Here());                                                         \
  }
SYNCLINE_KERNELS(SYNCLINE_DEFINE)
#undef SYNCLINE_DEFINE

}  // namespace syncline::device::kernels
