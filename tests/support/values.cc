#include "tests/support/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

// Numbers repeats itself after so many elements, Bytes after so many bytes. Odd ones, so that parts
// of a tensor are not taken for each other.
constexpr int64_t kNumbersPeriod = 13;
constexpr int64_t kBytesPeriod = 4099;

bool IsComplex(DType dtype) { return dtype == DType::kComplex64 || dtype == DType::kComplex128; }

bool IsSigned(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt32 ||
         dtype == DType::kInt64;
}

// Complex numbers as pairs of floats.
Tensor AsReal(const Tensor& tensor) {
  if (!IsComplex(tensor.dtype())) return tensor;
  const DType real = tensor.dtype() == DType::kComplex64 ? DType::kFloat32 : DType::kFloat64;
  return Tensor(tensor.data(), real, {2 * tensor.numel()}, {}, {}, tensor.owner());
}

int MantissaBits(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 11;
    case DType::kBFloat16:
      return 8;
    case DType::kFloat32:
      return 24;
    default:
      return 53;
  }
}

uint64_t Scramble(uint64_t x) {
  x = (x + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Of 1/2 to 2, so that no product of a few overflows.
double FloatAt(DType dtype, int64_t index, int seed) {
  const uint64_t random = Scramble(1000 * static_cast<uint64_t>(seed) + index);
  const int bits = MantissaBits(dtype);
  const uint64_t high = uint64_t{1} << (bits - 1);
  const uint64_t mantissa = high | (random & (high - 1));
  const double magnitude =
      std::ldexp(static_cast<double>(mantissa), static_cast<int>(random >> 60 & 1) - bits);
  return random >> 63 ? -magnitude : magnitude;
}

int64_t IntegerAt(DType dtype, int64_t index, int seed) {
  const int64_t magnitude = 1 + (7 * index + 3 * seed) % 4;
  return IsSigned(dtype) && (index + seed) % 3 == 0 ? -magnitude : magnitude;
}

// True of all seeds, of none, or of some, depending on the index.
bool BoolAt(int64_t index, int seed) {
  if (index % 4 == 0) return index % 8 == 0;
  return Scramble(1000 * static_cast<uint64_t>(seed) + index) % 2 == 0;
}

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Of numbers that float16 holds exactly, without zero.
uint16_t ToFloat16(double value) {
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

void PutFloat(const Tensor& tensor, int64_t i, double value) {
  switch (tensor.dtype()) {
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
    default:
      tensor.data_as<double>()[i] = value;
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

// Integers are little-endian and wrap around.
void PutInteger(const Tensor& tensor, int64_t i, int64_t value) {
  const size_t width = SizeOf(tensor.dtype());
  std::memcpy(tensor.data_as<char>() + i * width, &value, width);
}

// Fills `tensor` with repetitions of its first `period` bytes.
void Repeat(const Tensor& tensor, size_t period) {
  char* const data = tensor.data_as<char>();
  for (size_t filled = period; filled < tensor.nbytes(); filled *= 2) {
    std::memcpy(data + filled, data, std::min(filled, tensor.nbytes() - filled));
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

// What a float must be, and how far from it it may be.
struct Target {
  double want;
  double tolerance;
};

Target FloatTarget(DType dtype, ReduceOp op, int64_t i, absl::Span<const int> seeds,
                   absl::Span<const double> factors) {
  long double want = 0, magnitude = 0;
  for (size_t n = 0; n < seeds.size(); ++n) {
    long double value = FloatAt(dtype, i, seeds[n]);
    if (!factors.empty()) value *= factors[n];
    want = n == 0 ? value : Combine(op, want, value);
    magnitude += std::abs(value);
  }
  if (op == ReduceOp::kAvg) {
    want /= seeds.size();
    magnitude /= seeds.size();
  }
  if (op == ReduceOp::kProduct) magnitude = std::abs(want);
  // A rounding for every step, and for the factor.
  const double epsilon = std::ldexp(1, 1 - MantissaBits(dtype));
  const bool exact = op == ReduceOp::kMin || op == ReduceOp::kMax;
  return {static_cast<double>(want),
          exact ? 0 : static_cast<double>((seeds.size() + 2) * epsilon * magnitude)};
}

absl::Status CheckFloats(const Tensor& result, ReduceOp op, absl::Span<const int> seeds,
                         absl::Span<const double> factors) {
  std::vector<Target> targets;
  for (int64_t i = 0; i < kNumbersPeriod; ++i) {
    targets.push_back(FloatTarget(result.dtype(), op, i, seeds, factors));
  }
  for (int64_t i = 0; i < result.numel(); ++i) {
    const Target& target = targets[i % kNumbersPeriod];
    const double got = GetFloat(result, i);
    // Written so that NaN fails.
    if (!(std::abs(got - target.want) <= target.tolerance)) {
      return Wrong(result, op, i, absl::StrCat(got, ", not ", target.want));
    }
  }
  return absl::OkStatus();
}

int64_t BoolTarget(ReduceOp op, int64_t i, absl::Span<const int> seeds) {
  const int64_t set =
      std::count_if(seeds.begin(), seeds.end(), [&](int seed) { return BoolAt(i, seed); });
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor:
      return set > 0;
    case ReduceOp::kBxor:
      return set % 2;
    default:
      return set == static_cast<int64_t>(seeds.size());
  }
}

int64_t IntegerTarget(DType dtype, ReduceOp op, int64_t i, absl::Span<const int> seeds) {
  if (dtype == DType::kBool) return BoolTarget(op, i, seeds);
  int64_t value = IntegerAt(dtype, i, seeds[0]);
  for (int seed : seeds.subspan(1)) value = CombineIntegers(op, value, IntegerAt(dtype, i, seed));
  return op == ReduceOp::kAvg ? value / static_cast<int64_t>(seeds.size()) : value;
}

absl::Status CheckIntegers(const Tensor& result, ReduceOp op, absl::Span<const int> seeds) {
  const Tensor want = Tensor::Zeros(result.dtype(), {std::max(result.numel(), kNumbersPeriod)});
  for (int64_t i = 0; i < kNumbersPeriod; ++i) {
    PutInteger(want, i, IntegerTarget(result.dtype(), op, i, seeds));
  }
  const size_t width = SizeOf(result.dtype());
  Repeat(want, kNumbersPeriod * width);
  if (SameBytes(result, want.Slice(0, result.numel()))) return absl::OkStatus();
  for (int64_t i = 0; i < result.numel(); ++i) {
    if (std::memcmp(result.data_as<char>() + i * width, want.data_as<char>() + i * width, width)) {
      return Wrong(result, op, i, "integers must be exact");
    }
  }
  return absl::OkStatus();
}

}  // namespace

Tensor Numbers(DType dtype, int64_t count, int seed) {
  const Tensor tensor = Tensor::Zeros(dtype, {count});
  const Tensor real = AsReal(tensor);
  for (int64_t i = 0; i < std::min(real.numel(), kNumbersPeriod); ++i) {
    // Those of eight bits are moved alone: any bits will do.
    if (IsFloating(real.dtype()) && !IsFloat8(real.dtype())) {
      PutFloat(real, i, FloatAt(real.dtype(), i, seed));
    } else {
      PutInteger(real, i, dtype == DType::kBool ? BoolAt(i, seed) : IntegerAt(dtype, i, seed));
    }
  }
  Repeat(tensor, kNumbersPeriod * SizeOf(real.dtype()));
  return tensor;
}

Tensor Bytes(DType dtype, int64_t count, int seed) {
  const Tensor tensor = Tensor::Zeros(dtype, {count});
  const uint8_t mask = dtype == DType::kBool ? 1 : 255;
  const size_t fresh = std::min<size_t>(tensor.nbytes(), kBytesPeriod);
  for (size_t i = 0; i < fresh; ++i) {
    tensor.data_as<uint8_t>()[i] =
        static_cast<uint8_t>(Scramble(i + 5003 * static_cast<uint64_t>(seed))) & mask;
  }
  Repeat(tensor, kBytesPeriod);
  return tensor;
}

bool SameBytes(const Tensor& a, const Tensor& b) {
  return a.nbytes() == b.nbytes() &&
         (a.nbytes() == 0 || std::memcmp(a.data(), b.data(), a.nbytes()) == 0);
}

uint64_t Fingerprint(const Tensor& tensor) {
  uint64_t fingerprint = tensor.nbytes();
  for (size_t at = 0; at < tensor.nbytes(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, tensor.data_as<char>() + at, std::min(sizeof(word), tensor.nbytes() - at));
    fingerprint = (fingerprint ^ word) * 0x9e3779b97f4a7c15;
    fingerprint ^= fingerprint >> 29;
  }
  return fingerprint;
}

absl::Status CheckReduced(const Tensor& result, ReduceOp op, absl::Span<const int> seeds,
                          absl::Span<const double> factors) {
  const Tensor real = AsReal(result);
  return IsFloating(real.dtype()) ? CheckFloats(real, op, seeds, factors)
                                  : CheckIntegers(real, op, seeds);
}

std::vector<int> Upto(int size) {
  std::vector<int> numbers(size);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace syncline
