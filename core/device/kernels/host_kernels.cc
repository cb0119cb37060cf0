#include "core/device/kernels/host_kernels.h"

#include <cstdint>

#include "core/device/kernels/kernel_list.h"

namespace syncline::device::kernels {
namespace {

template <class Kernel>
void RunOnHost(const unsigned int grid[3], const unsigned int block[3], void* const* arguments) {
  const auto& args = *static_cast<const typename Kernel::Args*>(arguments[0]);
  for (uint32_t i = 0; i < grid[0]; ++i) {
    for (uint32_t j = 0; j < block[0]; ++j) Kernel::Run(args, {i, grid[0], j, block[0]});
  }
}

#define SYNCLINE_ENTRY(name, ...) {#name, sizeof(__VA_ARGS__::Args), &RunOnHost<__VA_ARGS__>},
constexpr HostKernel kKernels[] = {SYNCLINE_KERNELS(SYNCLINE_ENTRY)};
#undef SYNCLINE_ENTRY

}  // namespace

const HostKernel* HostKernels() { return kKernels; }

size_t HostKernelCount() { return sizeof(kKernels) / sizeof(kKernels[0]); }

}  // namespace syncline::device::kernels
