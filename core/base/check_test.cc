#include "syncline/check.h"

#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(CheckTest, AConditionThatHoldsIsEvaluatedOnce) {
  int evaluations = 0;
  SYNCLINE_DCHECK(++evaluations == 1);
  EXPECT_EQ(evaluations, 1) << "tests are built with checks on";
}

TEST(CheckDeathTest, AConditionThatDoesNotHoldEndsTheProcess) {
  const int index = 3;
  EXPECT_DEATH(SYNCLINE_DCHECK(index < 3), "check_test.cc:.*index < 3");
}

}  // namespace
}  // namespace syncline
