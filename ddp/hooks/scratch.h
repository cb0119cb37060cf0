// Memory that a hook uses for one bucket after another.
#ifndef SYNCLINE_DDP_HOOKS_SCRATCH_H_
#define SYNCLINE_DDP_HOOKS_SCRATCH_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "syncline/dtype.h"
#include "syncline/tensor.h"

namespace syncline::ddp {

// Large pieces lie in memory that the ranks of a host can read directly.
class Scratch {
 public:
  // `count` elements of any value, good until the next call.
  absl::StatusOr<Tensor> Take(DType dtype, int64_t count);

 private:
  Tensor memory_;  // Bytes.
};

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_HOOKS_SCRATCH_H_
