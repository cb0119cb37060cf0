#include "launch/output/prefix.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::launch {
namespace {

using testing::HasSubstr;

PrefixFacts Facts() {
  PrefixFacts facts;
  facts.role_name = "trainer";
  facts.rank = 11;
  facts.local_rank = 3;
  facts.group_rank = 2;
  facts.host = "box";
  facts.pid = 4242;
  return facts;
}

std::string Expand(const std::string& text) {
  const absl::StatusOr<LinePrefix> prefix = ExpandPrefix(text, Facts());
  EXPECT_TRUE(prefix.ok()) << prefix.status();
  return prefix.ok() ? prefix->Text() : "";
}

TEST(PrefixTest, EveryMacroIsReplaced) {
  EXPECT_EQ(Expand("[${role_name}${rank}|${local_rank}|${group_rank}|${host}|${pid}]: "),
            "[trainer11|3|2|box|4242]: ");
}

TEST(PrefixTest, BracesMayBeLeftOutAndDollarsAreDoubled) {
  EXPECT_EQ(Expand("$rank: $$rank $local_rank/"), "11: $rank 3/");
}

TEST(PrefixTest, TextWithoutMacrosStaysAsItIs) {
  EXPECT_EQ(Expand("> "), "> ");
  EXPECT_TRUE(ExpandPrefix("", Facts())->empty());
  EXPECT_FALSE(ExpandPrefix(" ", Facts())->empty());
  EXPECT_TRUE(LinePrefix().empty());
}

TEST(PrefixTest, TheTimeIsThatOfTheLine) {
  const absl::StatusOr<LinePrefix> prefix = ExpandPrefix("${time} ${rank} ${time}|", Facts());
  ASSERT_TRUE(prefix.ok()) << prefix.status();
  EXPECT_FALSE(prefix->empty());
  const absl::Time time = absl::FromUnixMillis(1500);
  EXPECT_EQ(prefix->At(time, absl::UTCTimeZone()),
            "1970-01-01T00:00:01.500 11 1970-01-01T00:00:01.500|");
  EXPECT_FALSE(ExpandPrefix("${time}", Facts())->empty());
}

TEST(PrefixTest, AnUnknownMacroIsAnErrorWithTheNearestName) {
  const absl::Status status = CheckPrefixTemplate("[${local_rnk}]");
  EXPECT_THAT(status.message(), HasSubstr("there is no ${local_rnk}. Did you mean ${local_rank}?"));
  EXPECT_THAT(CheckPrefixTemplate("$hots").message(), HasSubstr("${host}?"));
  EXPECT_TRUE(CheckPrefixTemplate("${time}").ok());
}

TEST(PrefixTest, AMacroWithoutNameOrEndIsAnError) {
  for (const char* text : {"$", "${", "${}", "${rank", "$ rank", "${ra nk}"}) {
    EXPECT_THAT(CheckPrefixTemplate(text).message(), HasSubstr("no name follows the $")) << text;
  }
}

}  // namespace
}  // namespace syncline::launch
