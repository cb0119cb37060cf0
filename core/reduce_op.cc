#include "core/reduce_op.h"

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace syncline {
namespace {

constexpr ReduceOp kAll[] = {ReduceOp::kSum, ReduceOp::kAvg,  ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax, ReduceOp::kBand, ReduceOp::kBor,     ReduceOp::kBxor};

bool IsBitwise(ReduceOp op) {
  return op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
}

}  // namespace

absl::Span<const ReduceOp> AllReduceOps() { return kAll; }

absl::string_view Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kBand:
      return "band";
    case ReduceOp::kBor:
      return "bor";
    case ReduceOp::kBxor:
      return "bxor";
  }
  return "unknown operation";
}

absl::Status CheckReduction(DType dtype, ReduceOp op) {
  if (IsInteger(dtype) || (IsFloating(dtype) && !IsBitwise(op))) return absl::OkStatus();
  if (IsFloating(dtype)) {
    return ArgumentError(absl::StrCat(Name(op), " is not defined on ", Name(dtype),
                                      "; floats allow sum, avg, product, min, max; band, bor and "
                                      "bxor need integers"));
  }
  return ArgumentError(absl::StrCat("reductions are not defined on ", Name(dtype),
                                    "; use an integer or float type (bool as uint8, complex as "
                                    "its real and imaginary parts)"));
}

}  // namespace syncline
