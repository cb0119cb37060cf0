// Averages buckets in 16 bits.
#ifndef SYNCLINE_DDP_HOOKS_HALF_HOOK_H_
#define SYNCLINE_DDP_HOOKS_HALF_HOOK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "core/tensor/dtype.h"
#include "ddp/comm_hook.h"

namespace syncline {

// Gradients of float32 and float64 are divided by the divisor, rounded to `half`, kFloat16 or
// kBFloat16, summed over the ranks as in any all-reduce of that type, and converted back; others
// are averaged as they are. Half the bytes of float32. Bitwise equal on all ranks.
//
// float16: relative errors of about 2^-11 for each rank; what is below 2^-24 becomes 0, and above
// 65504 infinity, as mixed-precision training expects (Micikevicius et al., "Mixed Precision
// Training", ICLR 2018, section 3.2). bfloat16: 2^-8, in the range of float32.
absl::StatusOr<std::shared_ptr<CommHook>> HalfHook(DType half);

}  // namespace syncline

#endif  // SYNCLINE_DDP_HOOKS_HALF_HOOK_H_
