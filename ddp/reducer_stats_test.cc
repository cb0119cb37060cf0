#include "syncline/reducer_stats.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

ReducerStats ThreeBuckets() {
  ReducerStats stats;
  stats.steps = 1;
  stats.hook = "all_reduce";
  stats.bucket_bytes = {1 << 20, 2 << 20, 1 << 19};
  stats.bucket_parameters = {1, 2, 3};
  stats.ready = {1000, 2000, 9000};
  stats.start = {1000, 2000, 9000};
  stats.end = {4000, 6000, 11000};  // The second waits for the first until 4000.
  stats.backward_end = 10000;
  stats.step_end = 12000;
  return stats;
}

TEST(ReducerStatsTest, BucketsThatWaitForEachOtherCountOnce) {
  EXPECT_EQ(ThreeBuckets().communication_time(), 3000 + 2000 + 2000);
}

TEST(ReducerStatsTest, WhatLiesBeforeTheEndOfTheBackwardPassIsHidden) {
  ReducerStats stats = ThreeBuckets();
  EXPECT_EQ(stats.hidden_time(), 3000 + 2000 + 1000);
  EXPECT_DOUBLE_EQ(stats.overlap_share(), 6.0 / 7);
  stats.backward_end = 0;
  EXPECT_EQ(stats.hidden_time(), 0);
}

TEST(ReducerStatsTest, WithoutCommunicationAllOfItIsHidden) {
  EXPECT_EQ(ReducerStats().overlap_share(), 1);
  EXPECT_THAT(ReducerStats().ToString(), HasSubstr("no step"));
}

TEST(ReducerStatsTest, TheTableHasALineForEachBucket) {
  const std::string table = ThreeBuckets().ToString();
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 2 + 3 + 2);
  EXPECT_THAT(table, HasSubstr("(86 %)"));
}

}  // namespace
}  // namespace syncline
