#include "ddp/bucketing.h"

#include <algorithm>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::ddp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Tensor Of(DType dtype, int64_t numel, Device device = {}) {
  return Tensor(nullptr, dtype, {numel}, {}, device);
}
Tensor Floats(int64_t numel) { return Of(DType::kFloat32, numel); }

// From the last parameter to the first.
std::vector<std::vector<int64_t>> Assign(absl::Span<const Tensor> parameters,
                                         const BucketCaps& caps) {
  std::vector<int64_t> order(parameters.size());
  std::iota(order.rbegin(), order.rend(), 0);
  return AssignBuckets(parameters, order, caps);
}

TEST(BucketingTest, NoParametersMakeNoBuckets) { EXPECT_THAT(Assign({}, {}), IsEmpty()); }

TEST(BucketingTest, BucketsFollowTheOrderThatIsGiven) {
  const Tensor parameters[] = {Floats(1), Floats(1), Floats(1)};
  EXPECT_THAT(Assign(parameters, {100, 100}), ElementsAre(ElementsAre(2, 1, 0)));
  EXPECT_THAT(AssignBuckets(parameters, {1, 0, 2}, {8, 8}),
              ElementsAre(ElementsAre(1, 0), ElementsAre(2)));
  EXPECT_THAT(AssignBuckets(parameters, {2, 0}, {8, 8}), ElementsAre(ElementsAre(2, 0)))
      << "only those in the order are placed";
}

TEST(BucketingTest, TheFirstBucketHasACapOfItsOwn) {
  const Tensor parameters[] = {Floats(10), Floats(10), Floats(10), Floats(10), Floats(10)};
  EXPECT_THAT(Assign(parameters, {40, 80}),
              ElementsAre(ElementsAre(4), ElementsAre(3, 2), ElementsAre(1, 0)));
}

TEST(BucketingTest, AListHasTheCapOfEachBucketAndItsLastOneGoesOn) {
  const std::vector<Tensor> parameters(9, Floats(10));
  EXPECT_THAT(Assign(parameters, {1, 1, {120, 40, 80}}),
              ElementsAre(ElementsAre(8, 7, 6), ElementsAre(5), ElementsAre(4, 3),
                          ElementsAre(2, 1), ElementsAre(0)));
}

TEST(BucketingTest, AParameterAboveTheCapStaysWhole) {
  const Tensor parameters[] = {Floats(1), Floats(1000), Floats(1)};
  EXPECT_THAT(Assign(parameters, {8, 8}), ElementsAre(ElementsAre(2, 1), ElementsAre(0)));
}

TEST(BucketingTest, ElementTypesAndDevicesDoNotMix) {
  const Tensor parameters[] = {Floats(1), Of(DType::kFloat64, 1), Floats(1),
                               Of(DType::kFloat32, 1, {DeviceType::kCuda, 0})};
  EXPECT_THAT(Assign(parameters, {100, 100}),
              ElementsAre(ElementsAre(3), ElementsAre(1), ElementsAre(2, 0)));
}

TEST(BucketingTest, ABucketThatIsCompleteLateDoesNotStandBeforeOthers) {
  std::vector<Tensor> parameters(4, Floats(10));
  parameters[0] = parameters[3] = Of(DType::kFloat64, 1);
  EXPECT_THAT(Assign(parameters, {40, 40}),
              ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(3, 0)));
}

TEST(BucketingTest, EmptyParametersRideAlong) {
  const Tensor parameters[] = {Floats(0), Floats(10), Floats(0)};
  EXPECT_THAT(Assign(parameters, {40, 40}), ElementsAre(ElementsAre(2, 1), ElementsAre(0)));
}

}  // namespace
}  // namespace syncline::ddp
