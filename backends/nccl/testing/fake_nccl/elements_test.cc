#include "backends/nccl/testing/fake_nccl/elements.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace fake_nccl {
namespace {

using namespace syncline::nccl;  // NOLINT: NCCL's names, which are all that this tests.

double Decode(NcclDataType dtype, uint16_t bits) { return ToDouble(dtype, &bits); }

uint16_t Encode(NcclDataType dtype, double value) {
  uint16_t bits = 0;
  FromDouble(dtype, value, &bits);
  return bits;
}

constexpr NcclDataType kNarrow[] = {kNcclFloat16, kNcclBfloat16, kNcclFloat8E4M3, kNcclFloat8E5M2};

TEST(ElementsTest, KnownBitsOfNarrowTypes) {
  EXPECT_EQ(Decode(kNcclFloat16, 0x3c00), 1);
  EXPECT_EQ(Decode(kNcclFloat16, 0x7bff), 65504);
  EXPECT_EQ(Decode(kNcclFloat16, 0x0001), std::ldexp(1, -24));
  EXPECT_EQ(Decode(kNcclBfloat16, 0xc040), -3);
  EXPECT_EQ(Decode(kNcclFloat8E4M3, 0x7e), 448);
  EXPECT_EQ(Decode(kNcclFloat8E4M3, 0x01), std::ldexp(1, -9));
  EXPECT_TRUE(std::isnan(Decode(kNcclFloat8E4M3, 0x7f)));
  EXPECT_EQ(Decode(kNcclFloat8E5M2, 0x7b), 57344);
  EXPECT_EQ(Decode(kNcclFloat8E5M2, 0x7c), std::numeric_limits<double>::infinity());
  EXPECT_EQ(Decode(kNcclFloat8E5M2, 0x81), -std::ldexp(1, -16));
}

TEST(ElementsTest, EveryNumberIsItself) {
  for (const NcclDataType dtype : kNarrow) {
    const int bits = SizeOf(dtype) == 1 ? 256 : 65536;
    for (int i = 0; i < bits; ++i) {
      const double value = Decode(dtype, static_cast<uint16_t>(i));
      if (std::isnan(value) || std::isinf(value)) continue;
      ASSERT_EQ(Encode(dtype, value), i) << dtype;
    }
  }
}

TEST(ElementsTest, RoundsToNearestEvenAndOverflowsAsCudaDoes) {
  EXPECT_EQ(Encode(kNcclFloat16, 1 + std::ldexp(1, -11)), 0x3c00);
  EXPECT_EQ(Encode(kNcclFloat16, 1 + 3 * std::ldexp(1, -11)), 0x3c02);
  EXPECT_EQ(Encode(kNcclFloat16, 1 - std::ldexp(1, -20)), 0x3c00);  // Into the next exponent.
  EXPECT_EQ(Encode(kNcclFloat16, 65519), 0x7bff);
  EXPECT_EQ(Encode(kNcclFloat16, 65520), 0x7c00);
  EXPECT_EQ(Encode(kNcclFloat16, std::ldexp(1, -25)), 0);
  EXPECT_EQ(Encode(kNcclFloat16, std::ldexp(1.5, -25)), 1);
  EXPECT_EQ(Encode(kNcclBfloat16, 1e39), 0x7f80);
  EXPECT_EQ(Encode(kNcclFloat8E4M3, 1e6), 0x7e);
  EXPECT_EQ(Encode(kNcclFloat8E4M3, -1e6), 0xfe);
  EXPECT_EQ(Encode(kNcclFloat8E5M2, 1e6), 0x7b);
  for (const NcclDataType dtype : kNarrow) {
    EXPECT_TRUE(std::isnan(Decode(dtype, Encode(dtype, NAN)))) << dtype;
  }
}

TEST(ElementsTest, IntegersWrapAroundAndTheirAverageRoundsTowardsZero) {
  const int8_t first = 127;
  const int8_t second = 3;
  int8_t result = 0;
  Reduce(kNcclInt8, kNcclSum, &result, {&first, &second}, 1);
  EXPECT_EQ(result, -126);
  const int64_t minus = -3;
  const int64_t zero = 0;
  int64_t average = 0;
  Reduce(kNcclInt64, kNcclAvg, &average, {&minus, &zero}, 1);
  EXPECT_EQ(average, -1);
  const uint64_t large = ~uint64_t{0};
  const uint64_t none = 0;
  uint64_t half = 0;
  Reduce(kNcclUint64, kNcclAvg, &half, {&large, &none}, 1);
  EXPECT_EQ(half, large / 2);
}

// The order of ranks, in the precision that is promised.
TEST(ElementsTest, NarrowTypesAreRoundedOnce) {
  std::vector<uint16_t> inputs = {Encode(kNcclFloat16, 2048), Encode(kNcclFloat16, 1),
                                  Encode(kNcclFloat16, 1)};
  uint16_t sum = 0;
  Reduce(kNcclFloat16, kNcclSum, &sum, {&inputs[0], &inputs[1], &inputs[2]}, 1);
  EXPECT_EQ(Decode(kNcclFloat16, sum), 2050);  // 2048 if each addition were rounded.
  const float large = 1e8f;
  const float small = 3.0f;
  const float minus = -1e8f;
  float total = -1;
  Reduce(kNcclFloat32, kNcclSum, &total, {&large, &small, &minus}, 1);
  EXPECT_EQ(total, (1e8f + 3.0f) - 1e8f);
}

}  // namespace
}  // namespace fake_nccl
