#include "ddp/bucketing.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Tensor Of(DType dtype, int64_t numel, Device device = {}) {
  return Tensor(nullptr, dtype, {numel}, {}, device);
}
Tensor Floats(int64_t numel) { return Of(DType::kFloat32, numel); }

TEST(BucketingTest, NoParametersMakeNoBuckets) { EXPECT_THAT(AssignBuckets({}, {}), IsEmpty()); }

TEST(BucketingTest, BucketsRunFromTheLastParameterToTheFirst) {
  const Tensor parameters[] = {Floats(1), Floats(1), Floats(1)};
  EXPECT_THAT(AssignBuckets(parameters, {100, 100}), ElementsAre(ElementsAre(2, 1, 0)));
}

TEST(BucketingTest, TheFirstBucketHasACapOfItsOwn) {
  const Tensor parameters[] = {Floats(10), Floats(10), Floats(10), Floats(10), Floats(10)};
  EXPECT_THAT(AssignBuckets(parameters, {40, 80}),
              ElementsAre(ElementsAre(4), ElementsAre(3, 2), ElementsAre(1, 0)));
}

TEST(BucketingTest, AParameterAboveTheCapStaysWhole) {
  const Tensor parameters[] = {Floats(1), Floats(1000), Floats(1)};
  EXPECT_THAT(AssignBuckets(parameters, {8, 8}), ElementsAre(ElementsAre(2, 1), ElementsAre(0)));
}

TEST(BucketingTest, ElementTypesAndDevicesDoNotMix) {
  const Tensor parameters[] = {Floats(1), Of(DType::kFloat64, 1), Floats(1),
                               Of(DType::kFloat32, 1, {DeviceType::kCuda, 0})};
  EXPECT_THAT(AssignBuckets(parameters, {100, 100}),
              ElementsAre(ElementsAre(3), ElementsAre(2, 0), ElementsAre(1)));
}

TEST(BucketingTest, EmptyParametersRideAlong) {
  const Tensor parameters[] = {Floats(0), Floats(10), Floats(0)};
  EXPECT_THAT(AssignBuckets(parameters, {40, 40}), ElementsAre(ElementsAre(2, 1), ElementsAre(0)));
}

}  // namespace
}  // namespace syncline
