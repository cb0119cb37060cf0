#include "core/tensor/reduce_kernels.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace syncline::tensor {
namespace {

// The reference: one element at a time, in plain C++.

template <typename T>
struct Exact {
  using Computed = T;
  static constexpr size_t kSize = sizeof(T);
  static T Read(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  static void Write(T value, char* to) { std::memcpy(to, &value, sizeof(value)); }
};

// A 16-bit float with `kFraction` bits behind the point, and no exponent below `kMinExponent`.
template <int kFraction, int kMinExponent>
struct Half {
  using Computed = float;
  static constexpr size_t kSize = 2;
  static constexpr int kMaxField = (1 << (15 - kFraction)) - 1;  // Infinity's and NaN's exponent.

  static float Read(const char* from) {
    const uint16_t bits = Exact<uint16_t>::Read(from);
    const int field = (bits & 0x7FFF) >> kFraction;
    const int fraction = bits & ((1 << kFraction) - 1);
    const int implied = field == 0 ? 0 : 1 << kFraction;
    double value =
        std::ldexp(implied + fraction, kMinExponent + std::max(field - 1, 0) - kFraction);
    if (field == kMaxField) value = fraction != 0 ? std::nan("") : INFINITY;
    return static_cast<float>((bits & 0x8000) != 0 ? -value : value);
  }

  static void Write(float value, char* to) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    Exact<uint16_t>::Write(sign | Magnitude(std::fabs(value)), to);
  }

 private:
  static uint16_t Magnitude(double value) {
    constexpr uint16_t kInfinity = kMaxField << kFraction;
    if (std::isnan(value)) return kInfinity | 1;
    if (std::isinf(value)) return kInfinity;
    if (value == 0) return 0;
    const int exponent = std::max(std::ilogb(value), kMinExponent);
    // In units of the last place; nearbyint rounds ties to even. A carry into the next exponent
    // comes out right, since the fields are next to each other.
    const auto units =
        static_cast<uint32_t>(std::nearbyint(std::ldexp(value, kFraction - exponent)));
    const uint32_t bits = (static_cast<uint32_t>(exponent - kMinExponent) << kFraction) + units;
    return static_cast<uint16_t>(std::min<uint32_t>(bits, kInfinity));
  }
};

using Float16 = Half<10, -14>;
using BFloat16 = Half<7, -126>;

template <typename F>
void WithFormat(DType dtype, F f) {
  switch (dtype) {
    case DType::kInt8:
      return f(Exact<int8_t>());
    case DType::kInt16:
      return f(Exact<int16_t>());
    case DType::kInt32:
      return f(Exact<int32_t>());
    case DType::kInt64:
      return f(Exact<int64_t>());
    case DType::kUInt8:
      return f(Exact<uint8_t>());
    case DType::kUInt16:
      return f(Exact<uint16_t>());
    case DType::kUInt32:
      return f(Exact<uint32_t>());
    case DType::kUInt64:
      return f(Exact<uint64_t>());
    case DType::kFloat16:
      return f(Float16());
    case DType::kBFloat16:
      return f(BFloat16());
    case DType::kFloat32:
      return f(Exact<float>());
    case DType::kFloat64:
      return f(Exact<double>());
    default:
      FAIL() << Name(dtype) << " cannot be reduced";
  }
}

template <typename T>
T Combined(ReduceOp op, T a, T b) {
  const bool a_is_nan = a != a;
  if (op == ReduceOp::kMin) return a < b || a_is_nan ? a : b;
  if (op == ReduceOp::kMax) return a > b || a_is_nan ? a : b;
  if constexpr (std::is_floating_point_v<T>) {
    return op == ReduceOp::kProduct ? a * b : a + b;
  } else {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    switch (op) {
      case ReduceOp::kProduct:
        return static_cast<T>(x * y);
      case ReduceOp::kBand:
        return static_cast<T>(x & y);
      case ReduceOp::kBor:
        return static_cast<T>(x | y);
      case ReduceOp::kBxor:
        return static_cast<T>(x ^ y);
      default:
        return static_cast<T>(x + y);
    }
  }
}

template <typename T>
T Divided(T value, int divisor) {
  if constexpr (std::is_floating_point_v<T> || std::is_unsigned_v<T>) {
    return static_cast<T>(value / static_cast<std::common_type_t<T, unsigned>>(divisor));
  } else {
    return static_cast<T>(static_cast<int64_t>(value) / divisor);
  }
}

std::string ExpectedReduction(DType dtype, ReduceOp op, const std::vector<std::string>& inputs,
                              int divisor) {
  std::string out(inputs[0].size(), 0);
  WithFormat(dtype, [&](auto format) {
    for (size_t at = 0; at < out.size(); at += format.kSize) {
      auto value = format.Read(&inputs[0][at]);
      for (size_t i = 1; i < inputs.size(); ++i) {
        value = Combined(op, value, format.Read(&inputs[i][at]));
      }
      format.Write(divisor == 1 ? value : Divided(value, divisor), &out[at]);
    }
  });
  return out;
}

// Equal bits, or a NaN on both sides.
void ExpectSame(DType dtype, const std::string& actual, const std::string& expected,
                const std::string& context) {
  if (actual == expected) return;
  WithFormat(dtype, [&](auto format) {
    for (size_t at = 0; at < expected.size(); at += format.kSize) {
      const auto a = format.Read(&actual[at]), e = format.Read(&expected[at]);
      const bool both_nan = a != a && e != e;
      ASSERT_TRUE(both_nan || actual.compare(at, format.kSize, expected, at, format.kSize) == 0)
          << context << ", element " << at / format.kSize << ": " << +a << " instead of " << +e;
    }
  });
}

// Elements of all bit patterns: so floats of all exponents, infinities and NaNs come up, though
// seldom in float64; hence each eighth element is one of a few small ones.
std::string RandomElements(DType dtype, size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::string bytes(count * SizeOf(dtype), 0);
  for (char& byte : bytes) byte = static_cast<char>(random());
  WithFormat(dtype, [&](auto format) {
    using T = typename decltype(format)::Computed;
    std::vector<T> special = {
        T{0}, T{1}, T{2}, T{3}, std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest()};
    if constexpr (std::is_floating_point_v<T>) {
      special.insert(special.end(),
                     {-T{0}, std::numeric_limits<T>::quiet_NaN(), T{0.1}, T{-2.5},
                      std::numeric_limits<T>::infinity(), -std::numeric_limits<T>::infinity(),
                      std::numeric_limits<T>::denorm_min()});
    }
    for (size_t i = 0; i < count; ++i) {
      if (random() % 8 == 0) {
        format.Write(special[random() % special.size()], &bytes[i * format.kSize]);
      }
    }
  });
  return bytes;
}

// Bytes at an address that is `offset` bytes off alignment, with guards around them.
class Misaligned {
 public:
  Misaligned(const std::string& bytes, size_t offset)
      : begin_(kGuard + offset), size_(bytes.size()), memory_(begin_ + size_ + kGuard, kFill) {
    memory_.replace(begin_, size_, bytes);
  }

  char* data() { return &memory_[begin_]; }
  std::string bytes() const { return memory_.substr(begin_, size_); }
  bool GuardsAreIntact() const {
    std::string rest = memory_;
    rest.erase(begin_, size_);
    return rest == std::string(rest.size(), kFill);
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr char kFill = 0x5A;
  const size_t begin_, size_;
  std::string memory_;
};

// Calls `f` with each instruction set of this CPU in turn.
template <typename F>
void WithEachTarget(F f) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    f(std::string(hwy::TargetName(target)));
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
}

constexpr size_t kCounts[] = {0, 1, 7, 64, 1000, 4097};
constexpr size_t kOffsets[] = {0, 1, 6};

class ReductionTest : public ::testing::TestWithParam<std::tuple<DType, ReduceOp>> {
 protected:
  const DType dtype_ = std::get<0>(GetParam());
  const ReduceOp op_ = std::get<1>(GetParam());

  void CheckReduce(const std::vector<std::string>& inputs, size_t offset,
                   const std::string& expected, const std::string& context) {
    const size_t count = expected.size() / SizeOf(dtype_);
    std::vector<Misaligned> copies;
    std::vector<const void*> pointers;
    for (const std::string& input : inputs) copies.emplace_back(input, offset);
    for (Misaligned& copy : copies) pointers.push_back(copy.data());
    Misaligned out(std::string(expected.size(), 0), offset);
    Reduce(dtype_, op_, out.data(), pointers, count);
    ExpectSame(dtype_, out.bytes(), expected, context);
    EXPECT_TRUE(out.GuardsAreIntact()) << context;
    for (size_t i = 0; i < inputs.size(); ++i) EXPECT_EQ(copies[i].bytes(), inputs[i]) << context;
  }
};

TEST_P(ReductionTest, AccumulateAgreesWithTheReferenceOnEveryInstructionSet) {
  for (const size_t count : kCounts) {
    const std::string a = RandomElements(dtype_, count, 1), b = RandomElements(dtype_, count, 2);
    const std::string expected = ExpectedReduction(dtype_, op_, {a, b}, 1);
    WithEachTarget([&](const std::string& target) {
      for (const size_t offset : kOffsets) {
        const std::string context = absl::StrCat(target, ", ", count, " elements, +", offset);
        Misaligned out(a, offset), in(b, kOffsets[2] - offset);
        Accumulate(dtype_, op_, out.data(), in.data(), count);
        ExpectSame(dtype_, out.bytes(), expected, context);
        EXPECT_TRUE(out.GuardsAreIntact()) << context;
        EXPECT_EQ(in.bytes(), b) << context;
      }
    });
  }
}

TEST_P(ReductionTest, ReduceAgreesWithTheReferenceOnEveryInstructionSet) {
  for (const size_t count : kCounts) {
    std::vector<std::string> inputs;
    for (const size_t size : {1, 2, 3, 5}) {
      while (inputs.size() < size) {
        inputs.push_back(RandomElements(dtype_, count, static_cast<unsigned>(inputs.size())));
      }
      const int divisor = op_ == ReduceOp::kAvg ? static_cast<int>(size) : 1;
      const std::string expected = ExpectedReduction(dtype_, op_, inputs, divisor);
      WithEachTarget([&](const std::string& target) {
        for (const size_t offset : kOffsets) {
          CheckReduce(inputs, offset, expected,
                      absl::StrCat(target, ", ", size, " x ", count, " elements, +", offset));
        }
      });
    }
  }
}

TEST_P(ReductionTest, TheResultMayReplaceAnyInput) {
  constexpr size_t kCount = 4097;
  for (const size_t size : {1, 2, 3, 4}) {
    std::vector<std::string> inputs;
    for (unsigned i = 0; i < size; ++i) inputs.push_back(RandomElements(dtype_, kCount, i));
    const int divisor = op_ == ReduceOp::kAvg ? static_cast<int>(size) : 1;
    const std::string expected = ExpectedReduction(dtype_, op_, inputs, divisor);
    for (size_t replaced = 0; replaced < size; ++replaced) {
      std::vector<std::string> copies = inputs;
      std::vector<const void*> pointers;
      for (const std::string& copy : copies) pointers.push_back(copy.data());
      Reduce(dtype_, op_, &copies[replaced][0], pointers, kCount);
      ExpectSame(dtype_, copies[replaced], expected, absl::StrCat(replaced, " of ", size));
    }
  }
}

std::vector<std::tuple<DType, ReduceOp>> AllReductions() {
  std::vector<std::tuple<DType, ReduceOp>> all;
  for (const DType dtype : AllDTypes()) {
    for (const ReduceOp op : AllReduceOps()) {
      const bool lowered = !IsInteger(dtype) && !IsFloating(dtype);  // To one of the others.
      if (lowered || IsFloat8(dtype) || op == ReduceOp::kPremulSum ||
          !CheckReduction(dtype, op).ok())
        continue;
      all.emplace_back(dtype, op);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(AllReductions, ReductionTest, ::testing::ValuesIn(AllReductions()),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)), "_",
                                               Name(std::get<1>(info.param)));
                         });

TEST(DivideTest, AgreesWithTheReferenceOnEveryInstructionSet) {
  for (const DType dtype : AllDTypes()) {
    if ((!IsInteger(dtype) && !IsFloating(dtype)) || IsFloat8(dtype)) continue;
    for (const size_t count : kCounts) {
      const std::string data = RandomElements(dtype, count, 3);
      for (const int divisor : {1, 2, 3, 7, 1000, std::numeric_limits<int>::max()}) {
        const std::string expected = ExpectedReduction(dtype, ReduceOp::kAvg, {data}, divisor);
        WithEachTarget([&](const std::string& target) {
          for (const size_t offset : kOffsets) {
            Misaligned actual(data, offset);
            Divide(dtype, actual.data(), divisor, count);
            ExpectSame(dtype, actual.bytes(), expected,
                       absl::StrCat(target, ", ", Name(dtype), ", ", count, " / ", divisor));
            EXPECT_TRUE(actual.GuardsAreIntact());
          }
        });
      }
    }
  }
}

template <typename T>
std::vector<T> Reduced(ReduceOp op, DType dtype, const std::vector<std::vector<T>>& inputs) {
  std::vector<const void*> pointers;
  for (const std::vector<T>& input : inputs) pointers.push_back(input.data());
  std::vector<T> out(inputs[0].size());
  Reduce(dtype, op, out.data(), pointers, out.size());
  return out;
}

TEST(ReduceKernelsTest, IntegerSumsAndProductsWrapAround) {
  using V = std::vector<int8_t>;
  EXPECT_EQ(Reduced<int8_t>(ReduceOp::kSum, DType::kInt8, {{127, -128}, {1, -1}}), (V{-128, 127}));
  EXPECT_EQ(Reduced<int8_t>(ReduceOp::kProduct, DType::kInt8, {{64, -7}, {2, 3}}), (V{-128, -21}));
}

TEST(ReduceKernelsTest, IntegerAveragesRoundTowardsZero) {
  EXPECT_EQ(Reduced<int32_t>(ReduceOp::kAvg, DType::kInt32, {{-3, 3}, {-4, 4}}),
            (std::vector<int32_t>{-3, 3}));
}

TEST(ReduceKernelsTest, BoolsAreCombinedAsTruthValues) {
  const std::vector<std::vector<uint8_t>> inputs = {{0, 0, 1, 1}, {0, 1, 0, 1}};
  const std::pair<ReduceOp, std::vector<uint8_t>> cases[] = {
      {ReduceOp::kSum, {0, 1, 1, 1}},  {ReduceOp::kProduct, {0, 0, 0, 1}},
      {ReduceOp::kMin, {0, 0, 0, 1}},  {ReduceOp::kMax, {0, 1, 1, 1}},
      {ReduceOp::kBand, {0, 0, 0, 1}}, {ReduceOp::kBor, {0, 1, 1, 1}},
      {ReduceOp::kBxor, {0, 1, 1, 0}},
  };
  for (const auto& [op, expected] : cases) {
    EXPECT_EQ(Reduced<uint8_t>(op, DType::kBool, inputs), expected) << Name(op);
    std::vector<uint8_t> out = inputs[0];
    Accumulate(DType::kBool, op, out.data(), inputs[1].data(), out.size());
    EXPECT_EQ(out, expected) << Name(op);
  }
}

TEST(ReduceKernelsTest, ComplexNumbersAreReducedByTheirParts) {
  using C = std::complex<double>;
  using V = std::vector<C>;
  const std::vector<V> inputs = {{{1, -2}, {0, 3}}, {{3, 4}, {5, 1}}};
  EXPECT_EQ(Reduced<C>(ReduceOp::kSum, DType::kComplex128, inputs), (V{{4, 2}, {5, 4}}));
  EXPECT_EQ(Reduced<C>(ReduceOp::kAvg, DType::kComplex128, inputs), (V{{2, 1}, {2.5, 2}}));
  std::vector<std::complex<float>> single = {{2, 4}, {6, -8}, {1, 0}};
  Divide(DType::kComplex64, single.data(), 2, single.size());
  EXPECT_EQ(single, (std::vector<std::complex<float>>{{1, 2}, {3, -4}, {0.5, 0}}));
}

TEST(ReduceKernelsTest, PremulSumSums) {
  EXPECT_EQ(Reduced<float>(ReduceOp::kPremulSum, DType::kFloat32, {{1, 2}, {3, 4}}),
            (std::vector<float>{4, 6}));
}

TEST(ScaleTest, MultipliesEveryElement) {
  std::vector<double> doubles(1001, 3.0);
  Scale(DType::kFloat64, doubles.data(), 0.5, doubles.size());
  EXPECT_EQ(doubles, std::vector<double>(1001, 1.5));
  std::vector<std::complex<float>> complex(7, {2, -4});
  Scale(DType::kComplex64, complex.data(), 0.5, complex.size());
  EXPECT_EQ(complex, std::vector<std::complex<float>>(7, {1, -2}));
  std::vector<uint16_t> halves(33, 0x3C00);  // 1.0
  Scale(DType::kFloat16, halves.data(), 2.0, halves.size());
  EXPECT_EQ(halves, std::vector<uint16_t>(33, 0x4000));
  std::vector<uint16_t> brain(33, 0x3F80);
  Scale(DType::kBFloat16, brain.data(), 2.0, brain.size());
  EXPECT_EQ(brain, std::vector<uint16_t>(33, 0x4000));
}

TEST(ReduceKernelsTest, ANaNOfAnyInputIsTheMinimumAndTheMaximum) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (const float value :
         Reduced<float>(op, DType::kFloat32, {{kNaN, 1, 1}, {1, kNaN, 1}, {1, 1, kNaN}})) {
      EXPECT_TRUE(std::isnan(value)) << Name(op);
    }
  }
}

TEST(ReduceKernelsTest, Float16SumsAreRoundedOnce) {
  // 2048 + 1 is a tie between 2048 and 2050 in float16: rounded at each step, it stays 2048.
  constexpr uint16_t k2048 = 0x6800, k1 = 0x3C00, k2050 = 0x6801;
  EXPECT_EQ(Reduced<uint16_t>(ReduceOp::kSum, DType::kFloat16, {{k2048}, {k1}, {k1}}),
            std::vector<uint16_t>{k2050});
}

TEST(ReduceKernelsTest, EveryHalfThatIsNotNaNSurvivesConversionOnEveryInstructionSet) {
  const std::pair<DType, uint16_t> cases[] = {{DType::kFloat16, 0x7C00},
                                              {DType::kBFloat16, 0x7F80}};
  for (const auto& [dtype, infinity] : cases) {
    std::vector<uint16_t> all;
    for (int bits = 0; bits < 65536; ++bits) {
      if ((bits & 0x7FFF) <= infinity) all.push_back(static_cast<uint16_t>(bits));
    }
    const std::vector<uint16_t> low(all.size(), infinity | 0x8000);
    WithEachTarget([&, dtype = dtype](const std::string& target) {
      EXPECT_EQ(Reduced<uint16_t>(ReduceOp::kMax, dtype, {all, low}), all)
          << target << ", " << Name(dtype);
    });
  }
}

}  // namespace
}  // namespace syncline::tensor
