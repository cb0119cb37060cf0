// Stands in for our kernels, on simulated devices, whose memory the host reaches.
#ifndef SYNCLINE_TESTS_BACKENDS_HOST_KERNELS_H_
#define SYNCLINE_TESTS_BACKENDS_HOST_KERNELS_H_

#include "absl/status/statusor.h"
#include "core/device/kernels.h"
#include "syncline/device.h"

namespace syncline {

// The host's kernels, as work of the stream. They live as long as the process.
absl::StatusOr<const device::Kernels*> HostKernelsOf(const Device& device);

// Answers as a driver does that is too old for our kernels.
absl::StatusOr<const device::Kernels*> NoKernelsOf(const Device& device);

}  // namespace syncline

#endif  // SYNCLINE_TESTS_BACKENDS_HOST_KERNELS_H_
