// DType: the element types of tensors. Pure functions. core/README.md says what to change to add
// one.
#ifndef SYNCLINE_DTYPE_H_
#define SYNCLINE_DTYPE_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "syncline/check.h"

namespace syncline {

// The order counts: Java passes element types by number.
enum class DType {
  kBool,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplex64,
  kComplex128,
  // Eight bits, as NVIDIA, Arm and Intel define them (https://arxiv.org/abs/2209.05433): four of
  // the exponent, without infinities, or five.
  kFloat8E4M3,
  kFloat8E5M2,
};

// All element types, in the order of their values.
absl::Span<const DType> AllDTypes();

// Bytes of one element.
inline size_t SizeOf(DType dtype) {
  static constexpr unsigned char kSizes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16, 1, 1};
  SYNCLINE_DCHECK(static_cast<size_t>(dtype) < sizeof(kSizes));
  return kSizes[static_cast<size_t>(dtype)];
}

// The name in the spelling of NumPy and ml_dtypes: "float32", "bfloat16", "bool", "float8_e5m2".
absl::string_view Name(DType dtype);

// The inverse of Name; ArgumentError that lists the known names for any other text.
absl::StatusOr<DType> ParseDType(absl::string_view name);

bool IsInteger(DType dtype);   // Signed and unsigned, not bool.
bool IsFloating(DType dtype);  // Not complex.
bool IsFloat8(DType dtype);    // Floating, of eight bits, which only some backends reduce.

}  // namespace syncline

#endif  // SYNCLINE_DTYPE_H_
