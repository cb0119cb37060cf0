#include "launch/devices.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::launch {
namespace {

using testing::HasSubstr;

TEST(DevicesTest, WithoutAListTheWorkerGetsTheDeviceOfItsLocalRank) {
  Environment environment = {{"LOCAL_RANK", "2"}};
  ASSERT_TRUE(ShowOneDevice(2, &environment).ok());
  EXPECT_EQ(environment["CUDA_VISIBLE_DEVICES"], "2");
  EXPECT_EQ(environment["LOCAL_RANK"], "0");
  EXPECT_EQ(environment.count("HIP_VISIBLE_DEVICES"), 0u);
}

TEST(DevicesTest, EveryListThatIsThereIsReduced) {
  Environment environment = {{"CUDA_VISIBLE_DEVICES", "7,GPU-ab, 3"},
                             {"HIP_VISIBLE_DEVICES", "0,1,2"},
                             {"ASCEND_RT_VISIBLE_DEVICES", "4,5"}};
  ASSERT_TRUE(ShowOneDevice(1, &environment).ok());
  EXPECT_EQ(environment["CUDA_VISIBLE_DEVICES"], "GPU-ab");
  EXPECT_EQ(environment["HIP_VISIBLE_DEVICES"], "1");
  EXPECT_EQ(environment["ASCEND_RT_VISIBLE_DEVICES"], "5");
}

TEST(DevicesTest, AnEmptyListStaysEmpty) {
  Environment environment = {{"CUDA_VISIBLE_DEVICES", ""}};
  ASSERT_TRUE(ShowOneDevice(0, &environment).ok());
  EXPECT_EQ(environment["CUDA_VISIBLE_DEVICES"], "");
}

TEST(DevicesTest, AListThatIsTooShortIsNamed) {
  Environment environment = {{"CUDA_VISIBLE_DEVICES", "0,1"}};
  EXPECT_THAT(
      ShowOneDevice(2, &environment).message(),
      HasSubstr("CUDA_VISIBLE_DEVICES=0,1 names 2 device(s): none is left for local rank 2"));
}

}  // namespace
}  // namespace syncline::launch
