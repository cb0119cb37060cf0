#include "core/api/adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "core/status.h"

namespace syncline::api {
namespace {

using ::testing::HasSubstr;

absl::Status GoOn() { return absl::OkStatus(); }

absl::Status Interrupted() { return absl::CancelledError("interrupted"); }

TEST(AdaptersTest, AWaitForAKeyEndsWithTheKey) {
  HashStore store;
  int asked = 0;
  // The key is set from within the wait, once that has lasted for a piece.
  auto value = StoreGet(store, "k", absl::Minutes(1), [&] {
    ++asked;
    return store.Set("k", "v");
  });
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(*value, "v");
  EXPECT_EQ(asked, 1);
}

TEST(AdaptersTest, AnInterruptEndsEveryWait) {
  HashStore store;
  Work work("barrier #0");
  EXPECT_EQ(StoreGet(store, "k", absl::Minutes(1), Interrupted).status(), Interrupted());
  EXPECT_EQ(StoreWait(store, {"k"}, absl::Minutes(1), Interrupted), Interrupted());
  EXPECT_EQ(StoreMultiGet(store, {"k"}, absl::Minutes(1), Interrupted).status(), Interrupted());
  EXPECT_EQ(WorkWait(work, {}, Interrupted), Interrupted());
}

TEST(AdaptersTest, ATimeoutTellsTheWholeWaitAndTheMissingKeys) {
  HashStore store;
  ASSERT_TRUE(store.Set("there", "").ok());
  const absl::Status status = StoreWait(store, {"x", "there", "y"}, absl::Milliseconds(120), GoOn);
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(status.message()), HasSubstr("keys 'x', 'y' not set after 120ms"));
}

TEST(AdaptersTest, WithoutATimeoutTheStoresOwnHolds) {
  HashStore store(absl::Milliseconds(10));
  EXPECT_THAT(std::string(StoreGet(store, "k", {}, GoOn).status().message()),
              HasSubstr("key 'k' not set after 10ms"));
}

TEST(AdaptersTest, ErrorsOtherThanTimeoutsEndAWaitAtOnce) {
  HashStore store;
  EXPECT_EQ(KindOf(StoreGet(store, "", absl::Minutes(1), GoOn).status()), ErrorKind::kArgument);
}

TEST(AdaptersTest, AWaitForWorkTellsItsOwnTimeoutFromTheOperations) {
  Work work("barrier #0");
  const absl::Status waited = WorkWait(work, absl::Milliseconds(5), GoOn);
  EXPECT_EQ(KindOf(waited), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(waited.message()),
              HasSubstr("barrier #0 has not finished after a wait of 5ms"));
  work.Start();
  work.Finish(TimeoutError("the operation timed out"));
  EXPECT_EQ(WorkWait(work, absl::Milliseconds(5), GoOn), TimeoutError("the operation timed out"));
}

TEST(AdaptersTest, CompareSetReturnsTheValueAfterTheCall) {
  HashStore store;
  EXPECT_EQ(*StoreCompareSet(store, "k", "other", "x"), "");
  EXPECT_EQ(*StoreCompareSet(store, "k", "", "v"), "v");
  EXPECT_EQ(*StoreCompareSet(store, "k", "other", "x"), "v");
}

TEST(AdaptersTest, ArgumentsOfStoresAreChecked) {
  EXPECT_EQ(KindOf(HashStoreCreate(absl::ZeroDuration()).status()), ErrorKind::kArgument);
  EXPECT_EQ(KindOf(TCPStoreCreate("127.0.0.1", 0, false, absl::Seconds(1)).status()),
            ErrorKind::kArgument);
  EXPECT_EQ(KindOf(TCPStoreCreate("127.0.0.1", 1 << 16, true, absl::Seconds(1)).status()),
            ErrorKind::kArgument);
}

}  // namespace
}  // namespace syncline::api
