// What a monitored barrier does when things go wrong; that it is a barrier, the conformance suite
// tells.
#include "core/group/monitored_barrier.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// A store whose server may fall silent. Calls without a timeout of their own would then last for
// minutes, so nobody should make them.
class FickleStore final : public Store {
 public:
  std::atomic<bool> silent{false};

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    SYNCLINE_RETURN_IF_ERROR(Speak());
    return store_.Set(key, value);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    SYNCLINE_RETURN_IF_ERROR(Speak(timeout));
    return store_.Get(key, timeout);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override {
    SYNCLINE_RETURN_IF_ERROR(Speak());
    return store_.Add(key, amount);
  }
  absl::StatusOr<CompareSetResult> CompareSet(absl::string_view key, absl::string_view expected,
                                              absl::string_view desired) override {
    SYNCLINE_RETURN_IF_ERROR(Speak());
    return store_.CompareSet(key, expected, desired);
  }
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override {
    SYNCLINE_RETURN_IF_ERROR(Speak(timeout));
    return store_.Wait(keys, timeout);
  }
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override {
    SYNCLINE_RETURN_IF_ERROR(Speak());
    return store_.Check(keys);
  }
  absl::StatusOr<bool> Delete(absl::string_view key) override {
    SYNCLINE_RETURN_IF_ERROR(Speak());
    return store_.Delete(key);
  }
  absl::StatusOr<std::vector<std::string>> Keys(absl::string_view prefix) override {
    SYNCLINE_RETURN_IF_ERROR(Speak());
    return store_.Keys(prefix);
  }
  absl::Status Append(absl::string_view key, absl::string_view value) override {
    SYNCLINE_RETURN_IF_ERROR(Speak());
    return store_.Append(key, value);
  }
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override {
    SYNCLINE_RETURN_IF_ERROR(Speak(timeout));
    return store_.MultiGet(keys, timeout);
  }
  absl::Status MultiSet(absl::Span<const std::string> keys,
                        absl::Span<const std::string> values) override {
    SYNCLINE_RETURN_IF_ERROR(Speak());
    return store_.MultiSet(keys, values);
  }
  absl::Duration timeout() const override { return store_.timeout(); }
  std::string ToString() const override { return "fickle"; }

 private:
  absl::Status Speak() {
    if (!silent) return absl::OkStatus();
    ADD_FAILURE() << "this would wait for the silent store for " << timeout();
    return TimeoutError("the store is silent");
  }
  absl::Status Speak(absl::Duration timeout) {
    if (!silent) return absl::OkStatus();
    absl::SleepFor(timeout);  // As a wait for an answer that does not come.
    return TimeoutError("the store is silent");
  }

  HashStore store_;
};

TEST(MonitoredBarrierTest, NothingOfItStaysInTheStore) {
  HashStore store;
  for (int size : {1, 2, 3, 7}) {
    for (const absl::Status& status : RunRanks(size, [&](int rank) {
           return group::MonitoredBarrier(store, rank, size, 4, Deadline(kTimeout));
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
    EXPECT_TRUE(store.Keys("").value().empty());
  }
}

TEST(MonitoredBarrierTest, TheFirstDeadlineIsEverybodysAndAllSayTheSame) {
  HashStore store;
  const std::vector<absl::Duration> deadlines = {kTimeout, absl::Seconds(2), kTimeout};
  const absl::Time began = absl::Now();
  for (const absl::Status& status : RunRanks(3, [&](int rank) {
         return group::MonitoredBarrier(store, rank, 6, 0, Deadline(deadlines[rank]));
       })) {
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_EQ(Message(status), "ranks 3, 4, 5 of 6 had not arrived after 2s");
    EXPECT_THAT(RanksOf(status), ::testing::ElementsAre(3, 4, 5));
  }
  EXPECT_LT(absl::Now() - began, absl::Seconds(20));
  EXPECT_EQ(Message(group::MonitoredBarrier(store, 4, 6, 0, Deadline(kTimeout))),
            "ranks 3, 4, 5 of 6 had not arrived after 2s")
      << "the error of those that come late is the same";
}

TEST(MonitoredBarrierTest, AnAbortedGroupEndsItAtOnceOnAllRanks) {
  HashStore store;
  std::atomic<bool> is_aborted{false};
  const absl::Time began = absl::Now();
  const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
    if (rank == 2) {  // Does not come; aborts rank 0's group once the others wait.
      SYNCLINE_RETURN_IF_ERROR(
          store.Wait({"monitored_barrier/7/came/0", "monitored_barrier/7/came/1"}, kTimeout));
      is_aborted = true;
      return absl::OkStatus();
    }
    return group::MonitoredBarrier(store, rank, 3, 7, Deadline(kTimeout), [&, rank] {
      return rank == 0 && is_aborted ? NetworkError("somebody pulled the plug") : absl::OkStatus();
    });
  });
  EXPECT_EQ(KindOf(statuses[0]), ErrorKind::kNetwork);
  EXPECT_EQ(Message(statuses[0]), "somebody pulled the plug");
  EXPECT_EQ(KindOf(statuses[1]), ErrorKind::kBackend);
  EXPECT_THAT(Message(statuses[1]), HasSubstr("rank 0 left: somebody pulled the plug"));
  EXPECT_THAT(RanksOf(statuses[1]), ::testing::ElementsAre(0));
  EXPECT_TRUE(statuses[2].ok()) << statuses[2];
  EXPECT_LT(absl::Now() - began, kTimeout / 3);
}

TEST(MonitoredBarrierTest, TheRanksThatBrokeTheGroupAreAtFaultAndNotThatWhichLeft) {
  HashStore store;
  const auto statuses = RunRanks(2, [&](int rank) {
    return group::MonitoredBarrier(store, rank, 4, 0, Deadline(kTimeout), [rank] {
      return rank == 0 ? WithRanks(NetworkError("ranks 2 and 3 died"), {2, 3}) : absl::OkStatus();
    });
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(RanksOf(status), ::testing::ElementsAre(2, 3)) << status;
  }
  EXPECT_EQ(Message(statuses[1]), "rank 0 left: ranks 2 and 3 died");
}

// What rank 0 of 2 returns where the store says this.
absl::Status WithOutcome(const std::string& outcome) {
  HashStore store;
  SYNCLINE_RETURN_IF_ERROR(store.Set("monitored_barrier/0/outcome", outcome));
  return group::MonitoredBarrier(store, 0, 2, 0, Deadline(kTimeout));
}

TEST(MonitoredBarrierTest, AnOutcomeThatNoBarrierHasIsAnErrorOfTheStore) {
  std::vector<std::string> outcomes = {"ok?", "x\n\nm", "99\n\nm", "-1\n\nm", "2\nm"};
  for (ErrorKind kind : {ErrorKind::kArgument, ErrorKind::kStore, ErrorKind::kMismatch}) {
    outcomes.push_back(absl::StrCat(static_cast<int>(kind), "\n\nm"));
  }
  for (const std::string& outcome : outcomes) {
    const absl::Status status = WithOutcome(outcome);
    EXPECT_EQ(KindOf(status), ErrorKind::kStore) << status;
    EXPECT_THAT(Message(status), HasSubstr("which is not understood"));
  }
}

TEST(MonitoredBarrierTest, RanksInAnOutcomeThatTheGroupDoesNotHaveAreDropped) {
  const int timeout = static_cast<int>(ErrorKind::kTimeout);
  const absl::Status status = WithOutcome(absl::StrCat(timeout, "\n1,2,7;0\nlate"));
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
  EXPECT_EQ(Message(status), "late");
  EXPECT_THAT(RanksOf(status), ::testing::ElementsAre(1));
}

TEST(MonitoredBarrierTest, ASilentStoreDoesNotExtendTheDeadline) {
  FickleStore store;
  store.silent = true;
  absl::Status status = group::MonitoredBarrier(store, 0, 2, 0, Deadline(absl::Milliseconds(200)));
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
}

TEST(MonitoredBarrierTest, NorDoesAStoreThatFallsSilentWhileItIsWaitedFor) {
  FickleStore store;
  const auto statuses = RunRanks(2, [&](int rank) -> absl::Status {
    if (rank == 0) return group::MonitoredBarrier(store, 0, 2, 0, Deadline(absl::Seconds(1)));
    SYNCLINE_RETURN_IF_ERROR(store.Wait({"monitored_barrier/0/count"}, kTimeout));
    store.silent = true;
    return absl::OkStatus();
  });
  EXPECT_EQ(KindOf(statuses[0]), ErrorKind::kTimeout) << statuses[0];
  EXPECT_THAT(Message(statuses[0]), HasSubstr("not all ranks came, and it is not known which"));
}

}  // namespace
}  // namespace syncline
