#include "syncline/reduce_op.h"

#include "absl/strings/str_cat.h"
#include "syncline/status.h"

namespace syncline {
namespace {

constexpr ReduceOp kAll[] = {ReduceOp::kSum, ReduceOp::kAvg,  ReduceOp::kProduct,
                             ReduceOp::kMin, ReduceOp::kMax,  ReduceOp::kBand,
                             ReduceOp::kBor, ReduceOp::kBxor, ReduceOp::kPremulSum};

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
    case ReduceOp::kPremulSum:
      return "premul_sum";
  }
  return "unknown operation";
}

absl::Status CheckReduction(DType dtype, ReduceOp op) {
  const bool adds = op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kPremulSum;
  absl::string_view allowed;
  if (IsInteger(dtype)) {
    if (op != ReduceOp::kPremulSum) return absl::OkStatus();
    allowed = "integers allow all operations but premul_sum, which needs floats";
  } else if (IsFloating(dtype)) {
    if (!IsBitwise(op)) return absl::OkStatus();
    allowed = "floats allow sum, avg, product, min, max, premul_sum; band, bor, bxor need integers";
  } else if (dtype == DType::kBool) {
    if (op != ReduceOp::kAvg && op != ReduceOp::kPremulSum) return absl::OkStatus();
    allowed = "bool allows sum (which is or), product, min, max, band, bor, bxor";
  } else {
    if (adds) return absl::OkStatus();
    allowed = "complex numbers allow sum, avg, premul_sum";
  }
  return ArgumentError(absl::StrCat(Name(op), " is not defined on ", Name(dtype), ": ", allowed));
}

}  // namespace syncline
