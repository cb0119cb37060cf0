#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "ddp/hooks/half_kernels.h"
#include "ddp/hooks/largest.h"
#include "ddp/hooks/low_rank.h"
#include "ddp/hooks/quantize_kernels.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/dtype.h"

namespace syncline::ddp {
namespace {

using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
std::vector<T> Normal(size_t count, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(normal(random));
  return values;
}

// ---- 16 bits ----

template <typename T>
std::vector<T> ThereAndBack(DType half, const std::vector<T>& values, double factor) {
  const DType wide = sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64;
  std::vector<uint16_t> halves(values.size());
  std::vector<T> back(values.size());
  Narrow(half, halves.data(), wide, values.data(), factor, values.size());
  Widen(wide, back.data(), half, halves.data(), back.size());
  return back;
}

template <typename T>
void ExpectSmallErrors(DType half, double bound) {
  for (size_t count : {0u, 1u, 7u, 1023u, 1025u, 5000u}) {
    const std::vector<T> values = Normal<T>(count);
    const std::vector<T> back = ThereAndBack(half, values, 0.5);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_NEAR(back[i], values[i] / 2, bound * std::abs(values[i] / 2) + 1e-7) << i;
    }
  }
}

TEST(HalfKernelsTest, ValuesAreRoundedOfBothTypesAndAnyCount) {
  ExpectSmallErrors<float>(DType::kFloat16, 0x1p-11);
  ExpectSmallErrors<double>(DType::kFloat16, 0x1.01p-11);
  ExpectSmallErrors<float>(DType::kBFloat16, 0x1p-8);
  ExpectSmallErrors<double>(DType::kBFloat16, 0x1.01p-8);
}

TEST(HalfKernelsTest, WhatIsTooLargeBecomesInfinityAndNanStays) {
  const std::vector<float> values = {1e6f, -1e6f, NAN, kInfinity, 65504.0f};
  const std::vector<float> back = ThereAndBack(DType::kFloat16, values, 1.0);
  EXPECT_EQ(back[0], kInfinity);
  EXPECT_EQ(back[1], -kInfinity);
  EXPECT_TRUE(std::isnan(back[2]));
  EXPECT_EQ(back[3], kInfinity);
  EXPECT_EQ(back[4], 65504.0f);
  EXPECT_NEAR(ThereAndBack(DType::kBFloat16, values, 1.0)[0], 1e6f, 1e6f * 0x1p-8f);
}

// ---- 8 bits ----

template <typename T>
std::vector<T> Requantized(const std::vector<T>& values, Quantizer<T>& quantizer) {
  std::vector<uint8_t> bytes(values.size());
  quantizer = Quantize(values.data(), bytes.data(), values.size());
  std::vector<T> back(values.size(), 100);
  Dequantize(quantizer, bytes.data(), T(1), back.data(), back.size());
  std::vector<T> added(values.size(), 1);
  AddDequantized(quantizer, bytes.data(), T(2), added.data(), added.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_FLOAT_EQ(added[i], 2 * back[i] + 1);
  return back;
}

template <typename T>
class QuantizeKernelsTest : public ::testing::Test {};
using Floats = ::testing::Types<float, double>;
TYPED_TEST_SUITE(QuantizeKernelsTest, Floats);

TYPED_TEST(QuantizeKernelsTest, ErrorsAreAtMostTheScaleAndZeroIsExact) {
  using T = TypeParam;
  for (T shift : {T(0), T(10), T(-10)}) {
    for (size_t count : {1u, 16u, 17u, 5000u}) {
      std::vector<T> values = Normal<T>(count);
      for (T& value : values) value += shift;
      values[0] = 0;
      Quantizer<T> quantizer;
      const std::vector<T> back = Requantized(values, quantizer);
      EXPECT_EQ(back[0], 0);
      for (size_t i = 0; i < count; ++i) EXPECT_NEAR(back[i], values[i], quantizer.scale) << i;
      EXPECT_LT(quantizer.scale, 20.0 / 255);
    }
  }
}

TYPED_TEST(QuantizeKernelsTest, ZerosAndTheTiniestNumbersBecomeZeros) {
  using T = TypeParam;
  Quantizer<T> quantizer;
  EXPECT_THAT(Requantized(std::vector<T>(3, 0), quantizer), ElementsAre(0, 0, 0));
  const T tiny = std::numeric_limits<T>::denorm_min();
  EXPECT_THAT(Requantized(std::vector<T>{tiny, -tiny}, quantizer), ElementsAre(0, 0));
}

TYPED_TEST(QuantizeKernelsTest, TheLargestNumbersHaveAScale) {
  using T = TypeParam;
  const T most = std::numeric_limits<T>::max() / T(1.01);
  Quantizer<T> quantizer;
  const std::vector<T> back = Requantized(std::vector<T>{most, -most}, quantizer);
  EXPECT_NEAR(back[0] / most, 1, 0.01);
  EXPECT_NEAR(back[1] / most, -1, 0.01);
}

TYPED_TEST(QuantizeKernelsTest, OneValueThatIsNotFiniteShowsInAll) {
  using T = TypeParam;
  for (T poison : {T(NAN), T(kInfinity), T(-kInfinity)}) {
    for (size_t place : {0u, 20u}) {
      std::vector<T> values(21, 1);
      values[place] = poison;
      std::vector<uint8_t> bytes(values.size());
      const Quantizer<T> quantizer = Quantize(values.data(), bytes.data(), values.size());
      std::vector<T> back(values.size());
      Dequantize(quantizer, bytes.data(), T(1), back.data(), back.size());
      for (T value : back) EXPECT_TRUE(std::isnan(value));
    }
  }
}

// ---- The largest ----

TEST(LargestTest, AreThoseOfASort) {
  for (size_t count : {1u, 2u, 100u, 5001u}) {
    const std::vector<float> values = Normal<float>(count);
    for (size_t k : {size_t{1}, count / 3 + 1, count}) {
      const std::vector<uint32_t> chosen = LargestElements(values.data(), count, k);
      ASSERT_EQ(chosen.size(), k);
      std::vector<bool> is_chosen(count);
      float least = kInfinity, most_left_out = 0;
      for (size_t i = 0; i < k; ++i) {
        EXPECT_TRUE(i == 0 || chosen[i - 1] < chosen[i]);
        is_chosen[chosen[i]] = true;
        least = std::min(least, std::abs(values[chosen[i]]));
      }
      for (size_t i = 0; i < count; ++i) {
        if (!is_chosen[i]) most_left_out = std::max(most_left_out, std::abs(values[i]));
      }
      EXPECT_GE(least, most_left_out);
    }
  }
}

TEST(LargestTest, OfEqualOnesTheFirstAreChosenAndNanIsLargest) {
  const std::vector<double> equal = {1, -1, 1, -1};
  EXPECT_THAT(LargestElements(equal.data(), 4, 2), ElementsAre(0, 1));
  const std::vector<double> odd = {0, 1e300, -INFINITY, NAN, 1e-320};
  EXPECT_THAT(LargestElements(odd.data(), 5, 1), ElementsAre(3));
  EXPECT_THAT(LargestElements(odd.data(), 5, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(LargestElements(odd.data(), 5, 4), ElementsAre(1, 2, 3, 4));
}

TEST(LargestTest, AnIndexOfAnotherRankBeyondTheEndAddsNothing) {
  const std::vector<float> values = {1, 2};
  std::vector<float> sum = {0, 0, 10};
  const auto add = [&](const std::vector<uint32_t>& indices) {
    return AddAtIndices(0.5f, indices.data(), values.data(), 2, sum.data(), sum.size());
  };
  EXPECT_TRUE(add({2, 0}));
  EXPECT_THAT(sum, ElementsAre(1, 0, 10.5));
  EXPECT_FALSE(add({0, 3}));
  EXPECT_FALSE(add({std::numeric_limits<uint32_t>::max(), 1}));
  EXPECT_THAT(sum, ElementsAre(1, 0, 10.5));
}

// ---- Thin matrices ----

TEST(LowRankTest, ProductsAreThoseOfTheDefinition) {
  constexpr int64_t kRows = 5, kCols = 37, kRank = 3;
  const MatrixShape shape = {kRows, kCols};
  const auto m = Normal<double>(kRows * kCols, 1);
  const auto q = Normal<double>(kRank * kCols, 2), p = Normal<double>(kRank * kRows, 3);
  std::vector<double> mq(kRank * kRows), mp(kRank * kCols), pq(kRows * kCols);
  MultiplyRows(m.data(), shape, q.data(), kRank, mq.data());
  MultiplyColumns(m.data(), shape, p.data(), kRank, mp.data());
  Expand(p.data(), q.data(), kRank, shape, kRows * kCols, pq.data());
  std::vector<double> rest = m;
  SubtractExpanded(p.data(), q.data(), kRank, shape, rest.data());
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kCols; ++j) {
      double expected = 0;
      for (int64_t k = 0; k < kRank; ++k) expected += p[k * kRows + i] * q[k * kCols + j];
      EXPECT_NEAR(pq[i * kCols + j], expected, 1e-12);
      EXPECT_NEAR(rest[i * kCols + j], m[i * kCols + j] - expected, 1e-12);
    }
  }
  for (int64_t k = 0; k < kRank; ++k) {
    for (int64_t i = 0; i < kRows; ++i) {
      double expected = 0;
      for (int64_t j = 0; j < kCols; ++j) expected += m[i * kCols + j] * q[k * kCols + j];
      EXPECT_NEAR(mq[k * kRows + i], expected, 1e-12);
    }
    for (int64_t j = 0; j < kCols; ++j) {
      double expected = 0;
      for (int64_t i = 0; i < kRows; ++i) expected += m[i * kCols + j] * p[k * kRows + i];
      EXPECT_NEAR(mp[k * kCols + j], expected, 1e-12);
    }
  }
}

TEST(LowRankTest, ExpandWritesNoMoreThanItsLimit) {
  const std::vector<float> p = {1, 2}, q = {1, 1, 1};
  std::vector<float> m(6, 9);
  Expand(p.data(), q.data(), 1, {2, 3}, 4, m.data());
  EXPECT_THAT(m, ElementsAre(1, 1, 1, 2, 9, 9));
}

TEST(LowRankTest, VectorsBecomeOrthogonalAndDependentOnesZero) {
  constexpr int64_t kLength = 50;
  std::vector<float> vectors = Normal<float>(3 * kLength);
  for (int64_t i = 0; i < kLength; ++i) {
    vectors[2 * kLength + i] = 2 * vectors[i] - vectors[kLength + i];
  }
  vectors.resize(5 * kLength);  // The fourth is 0.
  for (int64_t i = 0; i < kLength; ++i) vectors[4 * kLength + i] = i == 7 ? 1e-30f : 0;
  Orthogonalize(vectors.data(), kLength, 5, 0);
  const std::vector<double> expected_norm = {1, 1, 0, 0, 1};
  for (int64_t a = 0; a < 5; ++a) {
    for (int64_t b = 0; b <= a; ++b) {
      double dot = 0;
      for (int64_t i = 0; i < kLength; ++i)
        dot += vectors[a * kLength + i] * vectors[b * kLength + i];
      EXPECT_NEAR(dot, a == b ? expected_norm[a] : 0, 2e-6) << a << " and " << b;
    }
  }
}

}  // namespace
}  // namespace syncline::ddp
