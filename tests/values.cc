#include "tests/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

int64_t NumberAt(DType dtype, int64_t index, int rank) {
  const int64_t magnitude = 1 + (7 * index + 3 * rank) % 4;
  const bool has_sign = IsFloating(dtype) || dtype == DType::kInt8 || dtype == DType::kInt16 ||
                        dtype == DType::kInt32 || dtype == DType::kInt64;
  return has_sign && (index + rank) % 3 == 0 ? -magnitude : magnitude;
}

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Of whole numbers with at most 11 significant bits, which float16 and bfloat16 hold exactly here.
uint16_t ToFloat16(int64_t value) {
  if (value == 0) return 0;
  const uint32_t bits = BitsOf(static_cast<float>(value));
  const uint32_t exponent = ((bits >> 23) & 0xff) - 127 + 15;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 0x3ff));
}

double FromFloat16(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const double fraction = (bits & 0x3ff) / 1024.0;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -14)
                           : exponent == 31 ? (fraction == 0 ? HUGE_VAL : NAN)
                                            : std::ldexp(1 + fraction, exponent - 15);
  return bits & 0x8000 ? -magnitude : magnitude;
}

double FromBFloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

void Put(const Tensor& tensor, int64_t i, int64_t value) {
  switch (tensor.dtype()) {
    case DType::kInt8:
    case DType::kUInt8:
      tensor.data_as<uint8_t>()[i] = static_cast<uint8_t>(value);
      return;
    case DType::kInt16:
    case DType::kUInt16:
      tensor.data_as<uint16_t>()[i] = static_cast<uint16_t>(value);
      return;
    case DType::kInt32:
    case DType::kUInt32:
      tensor.data_as<uint32_t>()[i] = static_cast<uint32_t>(value);
      return;
    case DType::kInt64:
    case DType::kUInt64:
      tensor.data_as<int64_t>()[i] = value;
      return;
    case DType::kFloat16:
      tensor.data_as<uint16_t>()[i] = ToFloat16(value);
      return;
    case DType::kBFloat16:
      tensor.data_as<uint16_t>()[i] =
          static_cast<uint16_t>(BitsOf(static_cast<float>(value)) >> 16);
      return;
    case DType::kFloat32:
      tensor.data_as<float>()[i] = static_cast<float>(value);
      return;
    case DType::kFloat64:
      tensor.data_as<double>()[i] = static_cast<double>(value);
      return;
    default:
      return;  // bool and complex numbers are not reduced.
  }
}

double GetFloat(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DType::kFloat16:
      return FromFloat16(tensor.data_as<uint16_t>()[i]);
    case DType::kBFloat16:
      return FromBFloat16(tensor.data_as<uint16_t>()[i]);
    case DType::kFloat32:
      return tensor.data_as<float>()[i];
    default:
      return tensor.data_as<double>()[i];
  }
}

// Relative, of one rounding.
double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return std::ldexp(1, -10);
    case DType::kBFloat16:
      return std::ldexp(1, -7);
    case DType::kFloat32:
      return std::ldexp(1, -23);
    default:
      return std::ldexp(1, -52);
  }
}

template <typename T>
T Combine(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    default:
      return a + b;
  }
}

int64_t CombineIntegers(ReduceOp op, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::kBand:
      return a & b;
    case ReduceOp::kBor:
      return a | b;
    case ReduceOp::kBxor:
      return a ^ b;
    default:
      return Combine(op, a, b);
  }
}

absl::Status Wrong(const Tensor& tensor, ReduceOp op, int64_t i, absl::string_view details) {
  return absl::InternalError(
      absl::StrCat(Name(op), " of ", tensor.ToString(), " is wrong at ", i, ": ", details));
}

absl::Status CheckFloats(const Tensor& result, ReduceOp op, int size) {
  for (int64_t i = 0; i < result.numel(); ++i) {
    double want = NumberAt(result.dtype(), i, 0);
    for (int rank = 1; rank < size; ++rank) {
      want = Combine<double>(op, want, NumberAt(result.dtype(), i, rank));
    }
    if (op == ReduceOp::kAvg) want /= size;
    const double got = GetFloat(result, i);
    // Written so that NaN fails.
    if (!(std::abs(got - want) <= size * Epsilon(result.dtype()) * std::abs(want))) {
      return Wrong(result, op, i, absl::StrCat(got, ", not ", want));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckIntegers(const Tensor& result, ReduceOp op, int size) {
  const Tensor want = Tensor::Zeros(result.dtype(), {result.numel()});
  for (int64_t i = 0; i < result.numel(); ++i) {
    int64_t value = NumberAt(result.dtype(), i, 0);
    for (int rank = 1; rank < size; ++rank) {
      value = CombineIntegers(op, value, NumberAt(result.dtype(), i, rank));
    }
    Put(want, i, op == ReduceOp::kAvg ? value / size : value);
  }
  const size_t width = SizeOf(result.dtype());
  for (int64_t i = 0; i < result.numel(); ++i) {
    if (std::memcmp(result.data_as<char>() + i * width, want.data_as<char>() + i * width, width)) {
      return Wrong(result, op, i, "integers must be exact");
    }
  }
  return absl::OkStatus();
}

}  // namespace

Tensor Numbers(DType dtype, int64_t count, int rank) {
  Tensor tensor = Tensor::Zeros(dtype, {count});
  for (int64_t i = 0; i < count; ++i) Put(tensor, i, NumberAt(dtype, i, rank));
  return tensor;
}

Tensor Bytes(DType dtype, int64_t count, int rank) {
  Tensor tensor = Tensor::Zeros(dtype, {count});
  const uint8_t mask = dtype == DType::kBool ? 1 : 255;
  for (size_t i = 0; i < tensor.nbytes(); ++i) {
    tensor.data_as<uint8_t>()[i] = static_cast<uint8_t>((i * 151 >> 3) + i + rank * 77 + 1) & mask;
  }
  return tensor;
}

bool SameBytes(const Tensor& a, const Tensor& b) {
  return a.nbytes() == b.nbytes() &&
         (a.nbytes() == 0 || std::memcmp(a.data(), b.data(), a.nbytes()) == 0);
}

absl::Status CheckReduced(const Tensor& result, ReduceOp op, int size) {
  return IsFloating(result.dtype()) ? CheckFloats(result, op, size)
                                    : CheckIntegers(result, op, size);
}

}  // namespace syncline
