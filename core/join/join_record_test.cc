#include "core/join/join_record.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

using ::testing::ElementsAre;
using Role = StoreConfig::Role;

std::vector<JoinRecord> Records(const std::vector<int>& ranks, int host = -1) {
  std::vector<JoinRecord> records;
  for (size_t i = 0; i < ranks.size(); ++i) {
    records.push_back({ranks[i], static_cast<int>(i) == host ? Role::kServer : Role::kClient, {}});
  }
  return records;
}

TEST(AssignRanksTest, WithoutRanksTheOrderOfArrivalCounts) {
  EXPECT_THAT(*AssignRanks(Records({-1, -1, -1})), ElementsAre(0, 1, 2));
}

TEST(AssignRanksTest, TheHostOfTheStoreComesFirst) {
  EXPECT_THAT(*AssignRanks(Records({-1, -1, -1}, 1)), ElementsAre(1, 0, 2));
}

TEST(AssignRanksTest, RanksThatAreGivenAreKept) {
  EXPECT_THAT(*AssignRanks(Records({2, 0, 1}, 0)), ElementsAre(2, 0, 1));
  EXPECT_THAT(*AssignRanks(Records({-1, 0, -1, 2})), ElementsAre(1, 0, 3, 2));
  EXPECT_THAT(*AssignRanks(Records({-1, 0, -1}, 2)), ElementsAre(2, 0, 1));
}

TEST(AssignRanksTest, RanksThatCannotBeAreAStoreError) {
  EXPECT_EQ(KindOf(AssignRanks(Records({1, 1})).status()), ErrorKind::kStore);
  EXPECT_EQ(KindOf(AssignRanks(Records({2, -1})).status()), ErrorKind::kStore);
}

TEST(JoinRecordTest, SurvivesTheTripThroughAStore) {
  const JoinRecord record = {3, Role::kServer, base::IdentifyThisProcess().value(),
                             "cpu:auto,cuda:nccl"};
  auto parsed = JoinRecord::Parse(record.Serialize());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->rank, 3);
  EXPECT_EQ(parsed->role, Role::kServer);
  EXPECT_EQ(parsed->backend, "cpu:auto,cuda:nccl");
  EXPECT_EQ(parsed->peer.ToString(), record.peer.ToString());
  for (const char* text : {"", "3", "x server - 1 a b", "-2 server - 1 a b", "3 server - 1"}) {
    EXPECT_EQ(KindOf(JoinRecord::Parse(text).status()), ErrorKind::kStore) << text;
  }
}

TEST(CheckSameBackendTest, TheFirstRankThatDiffersIsNamed) {
  std::vector<JoinRecord> records = Records({2, 0, 1});
  EXPECT_TRUE(CheckSameBackend(records, {2, 0, 1}).ok());
  records[0].backend = "mpi";
  const absl::Status status = CheckSameBackend(records, {2, 0, 1});
  EXPECT_EQ(KindOf(status), ErrorKind::kMismatch);
  EXPECT_THAT(RanksOf(status), ElementsAre(0, 2));
}

}  // namespace
}  // namespace syncline::join
