// Our kernels as CUDA's driver runs them.
#ifndef SYNCLINE_CORE_DEVICE_CUDA_KERNELS_H_
#define SYNCLINE_CORE_DEVICE_CUDA_KERNELS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/device/cuda_driver.h"
#include "core/device/kernels.h"
#include "syncline/device.h"

namespace syncline::device {

// UnsupportedError that says what is missing if the driver or `device` is too old for our kernels,
// or lacks something. Needs no context.
absl::Status CheckCudaKernels(const CudaDriver& driver, const Device& device);

// Loads our kernels for `device`, whose primary context is current. `driver` outlives them. The
// context need not be current when they are used: they make it so. Errors
// of CheckCudaKernels; BackendError if loading fails.
absl::StatusOr<std::unique_ptr<Kernels>> MakeCudaKernels(const CudaDriver& driver,
                                                         const Device& device);

}  // namespace syncline::device

#endif  // SYNCLINE_CORE_DEVICE_CUDA_KERNELS_H_
