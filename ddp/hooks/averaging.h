// What communication hooks have in common.
#ifndef SYNCLINE_DDP_HOOKS_AVERAGING_H_
#define SYNCLINE_DDP_HOOKS_AVERAGING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "syncline/dtype.h"
#include "syncline/process_group.h"
#include "syncline/tensor.h"

namespace syncline::ddp {

// Whether hooks compress gradients of this type. All others they average as they are.
inline bool IsCompressible(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

// Replaces `tensor` by its sum over all ranks, divided by `divisor`. Bitwise equal on all ranks.
// On a device, behind and in front of what is on the current stream.
absl::Status AllReduceAverage(const Tensor& tensor, int64_t divisor, ProcessGroup& group);

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_HOOKS_AVERAGING_H_
