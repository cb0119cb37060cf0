// The kernels compiled for the host: a simulated device runs them.
#ifndef SYNCLINE_CORE_DEVICE_KERNELS_HOST_KERNELS_H_
#define SYNCLINE_CORE_DEVICE_KERNELS_HOST_KERNELS_H_

#include <cstddef>

namespace syncline::device::kernels {

struct HostKernel {
  const char* name;   // What the fat binary calls it.
  size_t args_bytes;  // The size of its one argument, a struct.
  // Does what all threads of a launch do, one after another. Grids and blocks have one dimension;
  // `arguments` is as for cuLaunchKernel.
  void (*run)(const unsigned int grid[3], const unsigned int block[3], void* const* arguments);
};

// All kernels: HostKernels()[i] for i < HostKernelCount().
const HostKernel* HostKernels();
size_t HostKernelCount();

}  // namespace syncline::device::kernels

#endif  // SYNCLINE_CORE_DEVICE_KERNELS_HOST_KERNELS_H_
