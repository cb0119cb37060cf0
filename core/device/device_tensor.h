// Tensors in the memory of a device.
#ifndef SYNCLINE_CORE_DEVICE_DEVICE_TENSOR_H_
#define SYNCLINE_CORE_DEVICE_DEVICE_TENSOR_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "syncline/device.h"
#include "syncline/dtype.h"
#include "syncline/tensor.h"

namespace syncline::device {

// A contiguous tensor on `device`, which owns its memory; its elements are not set to anything, on
// the CPU to 0. Work that uses it must have ended when its last copy goes. ArgumentError for a bad
// shape or a device that is not there, UnsupportedError without CUDA, BackendError if there is no
// memory.
absl::StatusOr<Tensor> EmptyOn(const Device& device, DType dtype, absl::Span<const int64_t> shape);

}  // namespace syncline::device

#endif  // SYNCLINE_CORE_DEVICE_DEVICE_TENSOR_H_
