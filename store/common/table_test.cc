#include "store/common/table.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::store {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Optional;

using Strings = std::vector<std::string>;

// Parks a wait for `keys`, whose values go to *values.
Table::WaitId Park(Table* table, Strings keys, std::optional<Strings>* values) {
  Table::WaitId id = 0;
  EXPECT_EQ(table->GetOrPark(
                std::move(keys), Table::Needs::kValues,
                [values](Strings v) { *values = std::move(v); }, &id),
            std::nullopt);
  return id;
}

TEST(TableTest, AWaitEndsWithTheSetOfItsLastKey) {
  Table table;
  std::optional<Strings> values;
  Park(&table, {"a", "b", "a"}, &values);
  ASSERT_TRUE(table.Set("b", "2").ok());
  EXPECT_EQ(values, std::nullopt);
  EXPECT_EQ(table.NumWaits(), 1);
  ASSERT_TRUE(table.Set("a", "1").ok());
  EXPECT_THAT(values, Optional(ElementsAre("1", "2", "1")));
  EXPECT_EQ(table.NumWaits(), 0);
}

TEST(TableTest, AWaitNeedsAllItsKeysAtTheSameTime) {
  Table table;
  std::optional<Strings> values;
  Park(&table, {"a", "b"}, &values);
  ASSERT_TRUE(table.Set("a", "1").ok());
  ASSERT_TRUE(*table.Delete("a"));
  ASSERT_TRUE(table.Set("b", "2").ok());
  EXPECT_EQ(values, std::nullopt);
  ASSERT_TRUE(table.Set("a", "3").ok());
  EXPECT_THAT(values, Optional(ElementsAre("3", "2")));
}

TEST(TableTest, AWaitSeesTheValuesThatEndedItEvenIfTheyAreGoneAtOnce) {
  Table table;
  std::optional<Strings> values;
  Park(&table, {"a"}, &values);
  ASSERT_TRUE(table.Set("a", "1").ok());
  ASSERT_TRUE(*table.Delete("a"));
  EXPECT_THAT(values, Optional(ElementsAre("1")));
}

TEST(TableTest, AWaitThatIsGivenUpIsNotCalledAndTellsWhatIsMissing) {
  Table table;
  std::optional<Strings> given_up, other;
  const Table::WaitId id = Park(&table, {"a", "b", "c"}, &given_up);
  Park(&table, {"a"}, &other);
  ASSERT_TRUE(table.Set("b", "2").ok());
  EXPECT_THAT(table.Unpark(id), Optional(ElementsAre("a", "c")));
  EXPECT_EQ(table.Unpark(id), std::nullopt);
  ASSERT_TRUE(table.MultiSet(Strings{"a", "c"}, Strings{"1", "3"}).ok());
  EXPECT_EQ(given_up, std::nullopt);
  EXPECT_THAT(other, Optional(ElementsAre("1")));
}

TEST(TableTest, AReadyCallMayUseTheTable) {
  Table table;
  std::optional<Strings> nested;
  Table::WaitId id = 0;
  table.GetOrPark(
      {"a"}, Table::Needs::kValues, [&](Strings) { EXPECT_TRUE(table.Set("b", "2").ok()); }, &id);
  Park(&table, {"b"}, &nested);
  ASSERT_TRUE(table.Set("a", "1").ok());
  EXPECT_THAT(nested, Optional(ElementsAre("2")));
}

TEST(TableTest, WhatIsSetIsReturnedAtOnceAndNothingIsParked) {
  Table table;
  ASSERT_TRUE(table.Set("a", "1").ok());
  Table::WaitId id = 0;
  EXPECT_THAT(table.GetOrPark(
                  {"a"}, Table::Needs::kValues, [](Strings) { FAIL(); }, &id),
              Optional(ElementsAre("1")));
  EXPECT_THAT(table.GetOrPark(
                  {}, Table::Needs::kValues, [](Strings) { FAIL(); }, &id),
              Optional(IsEmpty()));
  EXPECT_EQ(table.NumWaits(), 0);
}

TEST(TableTest, AWaitEndsWhenAKeyThatWasDeletedMeanwhileIsSetAgain) {
  Table table;
  std::optional<Strings> values;
  Park(&table, {"a", "b", "c"}, &values);
  ASSERT_TRUE(table.Set("a", "1").ok());
  ASSERT_TRUE(table.Set("b", "2").ok());
  ASSERT_TRUE(*table.Delete("a"));
  ASSERT_TRUE(table.Set("c", "3").ok());
  EXPECT_EQ(values, std::nullopt);
  ASSERT_TRUE(table.Set("a", "4").ok());
  EXPECT_THAT(values, Optional(ElementsAre("4", "2", "3")));
}

// Of a job of some thousand ranks, each of which waits for all. Where a set cost as many looks as
// there are waits times keys, this took minutes.
TEST(TableTest, ManyWaitsForManyKeysEndSoonAfterTheKeysAreSet) {
  constexpr int kWaits = 200, kKeys = 4000;
  Table table;
  Strings keys;
  for (int i = 0; i < kKeys; ++i) keys.push_back("trouble/" + std::to_string(i));
  std::vector<std::optional<Strings>> values(kWaits);
  for (auto& wait : values) Park(&table, keys, &wait);
  for (const std::string& key : keys) ASSERT_TRUE(table.Set(key, "here").ok());
  for (const auto& wait : values) EXPECT_TRUE(wait.has_value());
}

TEST(TableTest, AValueOfAQueueGoesToThePopThatHasWaitedLongest) {
  Table table;
  std::optional<Strings> first, second;
  Table::WaitId first_id = 0, second_id = 0, gone_id = 0;
  table.QueuePopOrPark("q", [](Strings) { FAIL(); }, &gone_id);
  table.QueuePopOrPark("q", [&](Strings v) { first = std::move(v); }, &first_id);
  table.QueuePopOrPark("q", [&](Strings v) { second = std::move(v); }, &second_id);
  EXPECT_EQ(table.NumWaits(), 3);
  EXPECT_THAT(table.Unpark(gone_id), Optional(ElementsAre("q")));
  ASSERT_TRUE(table.QueuePush("q", "1").ok());
  EXPECT_THAT(first, Optional(ElementsAre("1")));
  EXPECT_EQ(second, std::nullopt);
  EXPECT_EQ(table.Unpark(first_id), std::nullopt);
  ASSERT_TRUE(table.QueuePush("q", "2").ok());
  EXPECT_THAT(second, Optional(ElementsAre("2")));
  EXPECT_EQ(table.QueueLength("q"), 0);
  EXPECT_EQ(table.NumWaits(), 0);
}

TEST(TableTest, AQueueIsPresentAndHasNoValue) {
  Table table;
  std::optional<Strings> values, presence;
  Park(&table, {"q"}, &values);
  Table::WaitId id = 0;
  table.GetOrPark(
      {"q", "a"}, Table::Needs::kPresence, [&](Strings v) { presence = std::move(v); }, &id);
  ASSERT_TRUE(table.QueuePush("q", "1").ok());
  EXPECT_EQ(presence, std::nullopt);
  ASSERT_TRUE(table.Set("a", "1").ok());
  EXPECT_THAT(presence, Optional(IsEmpty()));
  EXPECT_EQ(values, std::nullopt);
  ASSERT_TRUE(table.Set("q", "value").ok());
  EXPECT_THAT(values, Optional(ElementsAre("value")));
}

}  // namespace
}  // namespace syncline::store
