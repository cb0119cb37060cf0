// ReduceOp: how a reduction combines the elements of all ranks. Pure functions. core/README.md says
// what to change to add one.
#ifndef SYNCLINE_REDUCE_OP_H_
#define SYNCLINE_REDUCE_OP_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "syncline/dtype.h"

namespace syncline {

enum class ReduceOp { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor, kPremulSum };

// All operations, in the order of their values.
absl::Span<const ReduceOp> AllReduceOps();

// "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum".
absl::string_view Name(ReduceOp op);

// OK if `op` is defined on `dtype`; an ArgumentError that says what is allowed otherwise.
//   integers  all but premul_sum; avg rounds towards zero
//   floats    all but band, bor, bxor
//   complex   sum, avg, premul_sum
//   bool      sum (which is or), product, min, max, band, bor, bxor
absl::Status CheckReduction(DType dtype, ReduceOp op);

}  // namespace syncline

#endif  // SYNCLINE_REDUCE_OP_H_
