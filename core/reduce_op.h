// How elements of all ranks are combined.
#ifndef SYNCLINE_CORE_REDUCE_OP_H_
#define SYNCLINE_CORE_REDUCE_OP_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"

namespace syncline {

enum class ReduceOp { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor };

// All operations, in the order of their values.
absl::Span<const ReduceOp> AllReduceOps();

// "sum", "avg", "product", "min", "max", "band", "bor", "bxor".
absl::string_view Name(ReduceOp op);

// OK if `op` is defined on `dtype`: sum, avg, product, min and max on all integers and floats;
// band, bor and bxor on integers. INVALID_ARGUMENT that says what is allowed otherwise.
absl::Status CheckReduction(DType dtype, ReduceOp op);

}  // namespace syncline

#endif  // SYNCLINE_CORE_REDUCE_OP_H_
