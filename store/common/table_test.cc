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
                std::move(keys), [values](Strings v) { *values = std::move(v); }, &id),
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
  table.GetOrPark({"a"}, [&](Strings) { EXPECT_TRUE(table.Set("b", "2").ok()); }, &id);
  Park(&table, {"b"}, &nested);
  ASSERT_TRUE(table.Set("a", "1").ok());
  EXPECT_THAT(nested, Optional(ElementsAre("2")));
}

TEST(TableTest, WhatIsSetIsReturnedAtOnceAndNothingIsParked) {
  Table table;
  ASSERT_TRUE(table.Set("a", "1").ok());
  Table::WaitId id = 0;
  EXPECT_THAT(table.GetOrPark({"a"}, [](Strings) { FAIL(); }, &id), Optional(ElementsAre("1")));
  EXPECT_THAT(table.GetOrPark({}, [](Strings) { FAIL(); }, &id), Optional(IsEmpty()));
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

}  // namespace
}  // namespace syncline::store
