#include "syncline/dtype.h"

#include <set>
#include <string>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/device.h"
#include "syncline/reduce_op.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

TEST(DTypeTest, EveryNameIsItsOwnAndParsesBack) {
  std::set<std::string> names;
  for (const DType dtype : AllDTypes()) {
    EXPECT_TRUE(names.insert(std::string(Name(dtype))).second) << Name(dtype);
    const absl::StatusOr<DType> parsed = ParseDType(Name(dtype));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, dtype);
  }
  EXPECT_EQ(names.size(), 17u);
}

TEST(DTypeTest, SizesAreThoseThatTheNamesSay) {
  for (const DType dtype : AllDTypes()) {
    const std::string name(Name(dtype));
    const size_t digits = name.find_first_of("0123456789");
    const size_t bits = digits == std::string::npos ? 8 : std::stoul(name.substr(digits));
    EXPECT_EQ(SizeOf(dtype) * 8, bits) << name;
  }
}

TEST(DTypeTest, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const absl::Status status = ParseDType("float23").status();
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'float23'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("int8, int16"));
  EXPECT_FALSE(ParseDType("").ok());
}

TEST(DTypeTest, BoolAndComplexAreNeitherIntegerNorFloating) {
  for (const DType dtype : {DType::kBool, DType::kComplex64, DType::kComplex128}) {
    EXPECT_FALSE(IsInteger(dtype)) << Name(dtype);
    EXPECT_FALSE(IsFloating(dtype)) << Name(dtype);
  }
  EXPECT_TRUE(IsInteger(DType::kUInt8));
  EXPECT_TRUE(IsInteger(DType::kInt64));
  EXPECT_TRUE(IsFloating(DType::kBFloat16));
  EXPECT_TRUE(IsFloating(DType::kFloat64));
}

TEST(DTypeTest, FloatsOfEightBitsAreFloatsThatBackendsMayNotReduce) {
  for (const DType dtype : AllDTypes()) {
    const bool is_float8 = Name(dtype).substr(0, 6) == "float8";
    EXPECT_EQ(IsFloat8(dtype), is_float8) << Name(dtype);
    if (!is_float8) continue;
    EXPECT_TRUE(IsFloating(dtype)) << Name(dtype);
    EXPECT_EQ(SizeOf(dtype), 1u) << Name(dtype);
  }
  EXPECT_EQ(Name(DType::kFloat8E4M3), "float8_e4m3fn");
  EXPECT_EQ(Name(DType::kFloat8E5M2), "float8_e5m2");
}

TEST(DeviceTest, OnlyDevicesOfWhichThereAreManyAreNumbered) {
  EXPECT_EQ(ToString(Device()), "cpu");
  EXPECT_EQ(ToString(Device{DeviceType::kCuda, 1}), "cuda:1");
  EXPECT_NE((Device{DeviceType::kCuda, 1}), (Device{DeviceType::kCuda, 0}));
}

TEST(ReduceOpTest, EachOperationIsDefinedOnTheTypesThatTheHeaderLists) {
  const std::set<ReduceOp> bitwise = {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor};
  const std::set<ReduceOp> adding = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPremulSum};
  for (const ReduceOp op : AllReduceOps()) {
    for (const DType dtype : AllDTypes()) {
      bool defined = adding.count(op) != 0;  // Complex numbers.
      if (IsInteger(dtype)) defined = op != ReduceOp::kPremulSum;
      if (IsFloating(dtype)) defined = bitwise.count(op) == 0;
      if (dtype == DType::kBool) defined = op == ReduceOp::kSum || adding.count(op) == 0;
      EXPECT_EQ(CheckReduction(dtype, op).ok(), defined) << Name(op) << " on " << Name(dtype);
    }
  }
}

TEST(ReduceOpTest, ARefusalSaysWhatIsAllowed) {
  const std::tuple<DType, ReduceOp, const char*> cases[] = {
      {DType::kFloat32, ReduceOp::kBxor, "bxor is not defined on float32: floats allow sum, avg"},
      {DType::kInt8, ReduceOp::kPremulSum, "integers allow all operations but premul_sum"},
      {DType::kBool, ReduceOp::kAvg, "bool allows sum (which is or)"},
      {DType::kComplex64, ReduceOp::kMax, "complex numbers allow sum, avg, premul_sum"},
  };
  for (const auto& [dtype, op, text] : cases) {
    const absl::Status status = CheckReduction(dtype, op);
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

TEST(ReduceOpTest, NamesAreTheFields) {
  std::string names;
  for (const ReduceOp op : AllReduceOps()) names += std::string(Name(op)) + " ";
  EXPECT_EQ(names, "sum avg product min max band bor bxor premul_sum ");
}

}  // namespace
}  // namespace syncline
