#include "launch/rendezvous/history.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace syncline::launch {
namespace {

std::vector<History> AllSmallHistories() {
  std::vector<History> all;
  for (int round = 0; round < 4; ++round) {
    for (int members = 0; members < 4; ++members) {
      for (const char* address : {"", "10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"}) {
        all.push_back({round, members, address});
      }
    }
  }
  return all;
}

TEST(HistoryTest, OfTwoHistoriesExactlyOneHolds) {
  const std::vector<History> all = AllSmallHistories();
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all.size(); ++j) {
      EXPECT_EQ(Outranks(all[i], all[j]) + Outranks(all[j], all[i]), i == j ? 0 : 1);
    }
  }
}

TEST(HistoryTest, WhatHoldsAgainstTheHolderHoldsAgainstTheOther) {
  const std::vector<History> all = AllSmallHistories();
  for (const History& a : all) {
    for (const History& b : all) {
      if (!Outranks(a, b)) continue;
      for (const History& c : all) {
        if (Outranks(b, c)) {
          EXPECT_TRUE(Outranks(a, c));
        }
      }
    }
  }
}

TEST(HistoryTest, WhereverManyMeetTheSameOneHolds) {
  std::vector<History> all = AllSmallHistories();
  const History best = *std::max_element(
      all.begin(), all.end(), [](const History& a, const History& b) { return Outranks(b, a); });
  for (const History& other : all) {
    const bool is_best =
        other.round == best.round && other.members == best.members && other.address == best.address;
    EXPECT_NE(Outranks(best, other), is_best);
  }
}

TEST(HistoryTest, TheLaterRoundHoldsThenTheLargerOneThenTheFirstAddress) {
  EXPECT_TRUE(Outranks({3, 1, "b:1"}, {2, 7, "a:1"}));
  EXPECT_TRUE(Outranks({2, 2, "b:1"}, {2, 1, "a:1"}));
  EXPECT_TRUE(Outranks({2, 2, "a:1"}, {2, 2, "b:1"}));
}

TEST(HistoryTest, AHistoryThatGrowsNeverLosesWhatItHolds) {
  for (const History& a : AllSmallHistories()) {
    for (const History& b : AllSmallHistories()) {
      if (!Outranks(a, b)) continue;
      EXPECT_TRUE(Outranks({a.round + 1, 1, a.address}, b));
    }
  }
}

}  // namespace
}  // namespace syncline::launch
