#include "core/join/membership.h"

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using Part = OpenedStore::Part;

std::vector<Arrival> Arrivals(const std::vector<int64_t>& ranks, int host = -1) {
  std::vector<Arrival> arrivals;
  for (size_t i = 0; i < ranks.size(); ++i) {
    arrivals.push_back({ranks[i], static_cast<int>(i) == host ? Part::kHost : Part::kGuest, {}});
  }
  return arrivals;
}

TEST(AssignRanksTest, WithoutRanksTheOrderOfArrivalCounts) {
  EXPECT_THAT(*AssignRanks(Arrivals({-1, -1, -1})), ElementsAre(0, 1, 2));
}

TEST(AssignRanksTest, TheHostOfTheStoreComesFirst) {
  EXPECT_THAT(*AssignRanks(Arrivals({-1, -1, -1}, 1)), ElementsAre(1, 0, 2));
}

TEST(AssignRanksTest, RanksThatAreGivenAreKept) {
  EXPECT_THAT(*AssignRanks(Arrivals({2, 0, 1}, 0)), ElementsAre(2, 0, 1));
  EXPECT_THAT(*AssignRanks(Arrivals({-1, 0, -1, 2})), ElementsAre(1, 0, 3, 2));
  EXPECT_THAT(*AssignRanks(Arrivals({-1, 0, -1}, 2)), ElementsAre(2, 0, 1));
}

TEST(AssignRanksTest, RanksThatCannotBeAreAStoreError) {
  EXPECT_EQ(KindOf(AssignRanks(Arrivals({1, 1})).status()), ErrorKind::kStore);
  EXPECT_EQ(KindOf(AssignRanks(Arrivals({2, -1})).status()), ErrorKind::kStore);
}

TEST(ArrivalTest, SurvivesTheTripThroughAStore) {
  const Arrival arrival = {3, Part::kHost, IdentifyThisProcess().value()};
  auto parsed = Arrival::Parse(arrival.Serialize());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->rank, 3);
  EXPECT_EQ(parsed->part, Part::kHost);
  EXPECT_EQ(parsed->peer.ToString(), arrival.peer.ToString());
  for (const char* text : {"", "3", "x host 1 a b", "-2 host 1 a b", "3 host 1"}) {
    EXPECT_EQ(KindOf(Arrival::Parse(text).status()), ErrorKind::kStore) << text;
  }
}

}  // namespace
}  // namespace syncline
