#include "core/base/rank_ranges.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace syncline::base {
namespace {

TEST(RankRangesTest, FourOrMoreInARowAreARange) {
  EXPECT_EQ(RankRanges(std::vector<int>{}), "");
  EXPECT_EQ(RankRanges(std::vector<int>{7}), "7");
  EXPECT_EQ(RankRanges(std::vector<int>{1, 2}), "1, 2");
  EXPECT_EQ(RankRanges(std::vector<int>{0, 2, 3, 4, 5, 9, 10, 11}), "0, 2-5, 9, 10, 11");
  std::vector<int> most(1000);
  std::iota(most.begin(), most.end(), 24);
  EXPECT_EQ(RankRanges(most), "24-1023");
}

TEST(RankRangesTest, NamesAreSingularOrPlural) {
  EXPECT_EQ(NameRanks(std::vector<int>{}), "no rank");
  EXPECT_EQ(NameRanks(std::vector<int>{3}), "rank 3");
  EXPECT_EQ(NameRanks(std::vector<int>{1, 2}), "ranks 1 and 2");
  EXPECT_EQ(NameRanks(std::vector<int>{5, 6, 7, 8}), "ranks 5-8");
  EXPECT_EQ(NameRanks(std::vector<int>{0, 2, 5, 6, 7, 8}), "ranks 0, 2 and 5-8");
}

TEST(RankRangesTest, AListShowsAtMostTen) {
  EXPECT_EQ(ListRanks({3}), "rank 3");
  EXPECT_EQ(ListRanks({0, 2, 3, 4, 5}), "ranks 0, 2, 3, 4, 5");
  std::vector<int> many(30);
  std::iota(many.begin(), many.end(), 0);
  EXPECT_EQ(ListRanks(many), "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 20 more");
  EXPECT_EQ(ListSome({"a", "b"}), "a, b");
}

}  // namespace
}  // namespace syncline::base
