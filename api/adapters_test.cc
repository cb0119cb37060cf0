#include "api/adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"
#include "syncline/store.h"

namespace syncline::api {
namespace {

using ::testing::HasSubstr;

absl::Status Interrupted() { return InterruptedError("interrupted"); }

TEST(AdaptersTest, AWaitForAKeyEndsWithTheKey) {
  HashStore store;
  int asked = 0;
  // The key is set from within the wait, once that has lasted for a piece.
  const auto check = [&] {
    ++asked;
    return store.Set("k", "v");
  };
  const InterruptScope scope(check);
  auto value = StoreGet(store, "k", absl::Minutes(1));
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(*value, "v");
  EXPECT_EQ(asked, 1);
}

TEST(AdaptersTest, AnInterruptEndsEveryWait) {
  HashStore store;
  Work work("barrier #0");
  const InterruptScope scope(&Interrupted);
  EXPECT_EQ(StoreGet(store, "k", absl::Minutes(1)).status(), Interrupted());
  EXPECT_EQ(StoreWait(store, {"k"}, absl::Minutes(1)), Interrupted());
  EXPECT_EQ(StoreMultiGet(store, {"k"}, absl::Minutes(1)).status(), Interrupted());
  const absl::Status waited = WorkWait(work, {});
  EXPECT_TRUE(IsInterrupted(waited));
  EXPECT_THAT(std::string(waited.message()), HasSubstr("barrier #0 goes on"));
}

TEST(AdaptersTest, ATimeoutTellsTheWholeWaitAndTheMissingKeys) {
  HashStore store;
  ASSERT_TRUE(store.Set("there", "").ok());
  const absl::Status status = StoreWait(store, {"x", "there", "y"}, absl::Milliseconds(120));
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(status.message()), HasSubstr("keys 'x', 'y' not set after 120ms"));
}

// Like one whose server is stopped.
class SilentStore final : public Store {
 public:
  absl::Status Set(absl::string_view, absl::string_view) override { return Silence(timeout()); }
  absl::StatusOr<std::string> Get(absl::string_view, absl::Duration timeout) override {
    return Silence(timeout);
  }
  absl::StatusOr<int64_t> Add(absl::string_view, int64_t) override { return Silence(timeout()); }
  absl::StatusOr<CompareSetResult> CompareSet(absl::string_view, absl::string_view,
                                              absl::string_view) override {
    return Silence(timeout());
  }
  absl::Status Wait(absl::Span<const std::string>, absl::Duration timeout) override {
    return Silence(timeout);
  }
  absl::StatusOr<bool> Check(absl::Span<const std::string>) override { return Silence(timeout()); }
  absl::StatusOr<bool> Delete(absl::string_view) override { return Silence(timeout()); }
  absl::StatusOr<std::vector<std::string>> Keys(absl::string_view) override {
    return Silence(timeout());
  }
  absl::Status Append(absl::string_view, absl::string_view) override { return Silence(timeout()); }
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string>,
                                                    absl::Duration timeout) override {
    return Silence(timeout);
  }
  absl::Status MultiSet(absl::Span<const std::string>, absl::Span<const std::string>) override {
    return Silence(timeout());
  }
  absl::Duration timeout() const override { return absl::Seconds(10); }
  std::string ToString() const override { return "silent://"; }

 private:
  static absl::Status Silence(absl::Duration timeout) {
    absl::SleepFor(timeout + absl::Milliseconds(100));  // It notices late.
    return TimeoutError("store silent://: the server has not answered");
  }
};

TEST(AdaptersTest, AStoreThatIsSilentHoldsUpNoWaitForLongAndIsToldAsSilent) {
  SilentStore store;
  for (const auto& wait : std::vector<std::function<absl::Status(absl::Duration)>>{
           [&](absl::Duration timeout) { return StoreGet(store, "k", timeout).status(); },
           [&](absl::Duration timeout) { return StoreWait(store, {"k"}, timeout); },
           [&](absl::Duration timeout) { return StoreMultiGet(store, {"k"}, timeout).status(); }}) {
    const absl::Time start = absl::Now();
    const absl::Status status = wait(absl::Milliseconds(120));
    EXPECT_LT(absl::Now() - start, absl::Seconds(5));
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
    EXPECT_EQ(status.message(), "store silent://: the server has not answered");
  }
}

TEST(AdaptersTest, WithoutATimeoutTheStoresOwnHolds) {
  HashStore store(absl::Milliseconds(10));
  EXPECT_THAT(std::string(StoreGet(store, "k", {}).status().message()),
              HasSubstr("key 'k' not set after 10ms"));
}

TEST(AdaptersTest, ErrorsOtherThanTimeoutsEndAWaitAtOnce) {
  HashStore store;
  EXPECT_EQ(KindOf(StoreGet(store, "", absl::Minutes(1)).status()), ErrorKind::kArgument);
}

TEST(AdaptersTest, AWaitForWorkTellsItsOwnTimeoutFromTheOperations) {
  Work work("barrier #0");
  const absl::Status waited = WorkWait(work, absl::Milliseconds(5));
  EXPECT_EQ(KindOf(waited), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(waited.message()),
              HasSubstr("barrier #0 has not finished after a wait of 5ms"));
  work.Start();
  work.Finish(TimeoutError("the operation timed out"));
  EXPECT_EQ(WorkWait(work, absl::Milliseconds(5)), TimeoutError("the operation timed out"));
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

TEST(AdaptersTest, AnInterruptEndsThePreemptionsWaitForOtherRanks) {
  const auto store = std::make_shared<HashStore>();
  EXPECT_EQ(KindOf(PreemptionCreate(store, 0, 2, absl::ZeroDuration()).status()),
            ErrorKind::kArgument);
  const auto preemption = PreemptionCreate(store, 0, 2, absl::Minutes(1));
  ASSERT_TRUE(preemption.ok()) << preemption.status();
  (*preemption)->GiveNotice();
  absl::StatusOr<bool> stops = false;
  const InterruptScope scope(&Interrupted);
  for (int64_t step = 0; stops.ok() && !*stops; ++step) stops = (*preemption)->Reached(step);
  EXPECT_EQ(stops.status(), Interrupted());
}

}  // namespace
}  // namespace syncline::api
