#include "syncline/error_origin.h"

#include "core/base/origin_line.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ErrorOrigin Origin() {
  ErrorOrigin origin;
  origin.operations = {{"all_reduce", 5}, {"recv", 18446744073709551615u, 3, 2}};
  origin.ranks = {7, 0, 1, 2, 7};
  return origin;
}

TEST(ErrorOriginTest, AnErrorCarriesItsOrigin) {
  EXPECT_FALSE(OriginOf(TimeoutError("m")).has_value());
  EXPECT_THAT(RanksOf(TimeoutError("m")), IsEmpty());
  const absl::Status status = WithOrigin(TimeoutError("m"), Origin());
  EXPECT_EQ(status.message(), "m");
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  const auto origin = OriginOf(status);
  ASSERT_TRUE(origin.has_value());
  EXPECT_EQ(origin->operations, Origin().operations);
  EXPECT_THAT(origin->ranks, ElementsAre(0, 1, 2, 7));
  EXPECT_FALSE(origin->lacks_arguments);
}

TEST(ErrorOriginTest, OkHasNoOrigin) {
  EXPECT_TRUE(WithOrigin(absl::OkStatus(), Origin()).ok());
  EXPECT_TRUE(WithRanks(absl::OkStatus(), {1}).ok());
  EXPECT_TRUE(WithOperation(absl::OkStatus(), {"barrier", 0}).ok());
}

TEST(ErrorOriginTest, AnnotateKeepsIt) {
  const absl::Status status = Annotate(WithOrigin(TimeoutError("m"), Origin()), "context");
  EXPECT_EQ(status.message(), "context: m");
  EXPECT_EQ(OriginOf(status)->operations, Origin().operations);
}

TEST(ErrorOriginTest, OneFieldChangesWithoutTheOthers) {
  absl::Status status = WithRanks(WithOrigin(TimeoutError("m"), Origin()), {4});
  EXPECT_EQ(OriginOf(status)->operations, Origin().operations);
  EXPECT_THAT(RanksOf(status), ElementsAre(4));
  status = WithOperation(status, {"barrier", 6});
  EXPECT_EQ(OriginOf(status)->operations, std::vector<ErrorOrigin::Operation>({{"barrier", 6}}));
  EXPECT_THAT(RanksOf(status), ElementsAre(4));
}

TEST(ErrorOriginTest, AStatusMadeOfAnotherCanTakeItOver) {
  const absl::Status from = WithRanks(TimeoutError("m"), {4});
  EXPECT_THAT(RanksOf(WithOriginOf(BackendError("n"), from)), ElementsAre(4));
  EXPECT_FALSE(OriginOf(WithOriginOf(BackendError("n"), TimeoutError("m"))).has_value());
}

TEST(ErrorOriginTest, ItCrossesProcessesInOneLine) {
  ErrorOrigin origin = Origin();
  origin.lacks_arguments = true;
  origin.operations[0].name = "a;b\nc d";
  const std::string line = SerializeOrigin(WithOrigin(TimeoutError("m"), origin));
  EXPECT_EQ(line, "0, 1, 2, 7;1;5 -1 -1 a b c d;18446744073709551615 3 2 recv");
  const auto parsed = ParseOrigin(line);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_THAT(parsed->ranks, ElementsAre(0, 1, 2, 7));
  EXPECT_TRUE(parsed->lacks_arguments);
  EXPECT_EQ(parsed->operations[0].name, "a b c d");
  EXPECT_EQ(parsed->operations[1], Origin().operations[1]);
  EXPECT_EQ(SerializeOrigin(TimeoutError("m")), "");
}

TEST(ErrorOriginTest, RanksThatNoGroupHasAreDropped) {
  const int max = base::kMaxRanks;
  ErrorOrigin origin = Origin();
  origin.ranks = {max, -1, max - 1, 3, 1 << 30, -7};
  const absl::Status status = WithOrigin(TimeoutError("m"), origin);
  EXPECT_THAT(RanksOf(status), ElementsAre(3, max - 1));
  EXPECT_EQ(OriginOf(status)->operations, origin.operations);
  EXPECT_THAT(RanksOf(WithRanks(TimeoutError("m"), {-1})), IsEmpty());
}

TEST(ErrorOriginTest, RanksThatTheGroupDoesNotHaveAreDropped) {
  const auto parsed = base::ParseOriginInGroup("0-2,7;0;5 -1 -1 barrier", 2);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_THAT(parsed->ranks, ElementsAre(0, 1));
  EXPECT_EQ(parsed->operations.size(), 1u);
}

TEST(ErrorOriginTest, ADamagedLineIsNoOrigin) {
  for (const char* line :
       {"", "0", "0;", "0;2", "x;1", "3-1;1", "-1;1", "0-999999999;1", "0;1;x", "0;1;5 -1",
        "0;1;5 -1 -1", "0;1;5 x -1 all_reduce", "0;1;5 -1 x all_reduce"}) {
    EXPECT_FALSE(ParseOrigin(line).has_value()) << line;
  }
  EXPECT_THAT(ParseOrigin(";1")->ranks, IsEmpty());
}

}  // namespace
}  // namespace syncline
