// Backends whose ranks are threads, one of which gives up in the middle of each operation.
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/backends/killable.h"
#include "tests/support/backend_config.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

// A receive from any rank goes on when one rank leaves, as others may still send to it.
std::vector<std::string> Calls() {
  std::vector<std::string> calls = KillableCalls();
  calls.erase(std::remove(calls.begin(), calls.end(), "recv_from_any"), calls.end());
  return calls;
}

absl::StatusOr<std::shared_ptr<Backend>> Join(const std::string& name, std::shared_ptr<Store> store,
                                              int rank) {
  return BackendRegistry::Make(name, OnLoopback(std::move(store), rank, kKillableRanks));
}

class BackendAbortTest
    : public testing::TestWithParam<std::tuple<std::string, std::string, int64_t>> {};

INSTANTIATE_TEST_SUITE_P(All, BackendAbortTest,
                         testing::Combine(testing::Values("auto", "gloo", "local", "shm", "tcp"),
                                          testing::ValuesIn(Calls()), testing::Values(1, 1 << 20)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_",
                                               std::get<1>(info.param),
                                               std::get<2>(info.param) == 1 ? "_small" : "_large");
                         });

TEST_P(BackendAbortTest, ARankThatAbortsInACallFailsAllRanksSoonWithItsCause) {
  const auto& [name, call, count] = GetParam();
  const Habit habit{call, count};
  const auto store = std::make_shared<HashStore>();
  Countdown under_way(kKillableRanks);
  absl::Time aborted;
  std::vector<absl::Time> failed(kKillableRanks);
  const auto statuses = RunRanks(kKillableRanks, [&, &name = name](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(name, store, rank));
    std::thread aborter;
    if (rank == kVictim) {
      aborter = std::thread([&] {
        under_way.Wait();
        aborted = absl::Now();
        backend->Abort(BackendError("the disk is full"));
      });
    }
    const absl::Status status = CallUntilFailure(*backend, rank, habit, [&] { under_way.Step(); });
    failed[rank] = absl::Now();
    if (aborter.joinable()) aborter.join();
    EXPECT_EQ(RunAndWait(*backend, Collective::Barrier(), CallContext{}).status(),
              status);  // All that come later fail alike.
    return status;
  });
  EXPECT_LT(*std::max_element(failed.begin(), failed.end()) - aborted, kNotice);
  for (int rank = 0; rank < kKillableRanks; ++rank) {
    const std::string message(statuses[rank].message());
    EXPECT_EQ(KindOf(statuses[rank]), ErrorKind::kBackend) << message;
    EXPECT_THAT(message, HasSubstr("the disk is full"));
    if (rank != kVictim) {
      EXPECT_THAT(message, HasSubstr(absl::StrCat("rank ", kVictim)));
    }
  }
}

TEST_P(BackendAbortTest, ARankThatIsDestroyedBetweenCallsFailsAllOthersSoon) {
  const auto& [name, call, count] = GetParam();
  Habit habit{call, count};
  habit.victims_call = "nothing";
  const auto store = std::make_shared<HashStore>();
  absl::Time destroyed;
  std::vector<absl::Time> failed(kKillableRanks);
  const auto statuses = RunRanks(kKillableRanks, [&, &name = name](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(name, store, rank));
    const absl::Status status = CallUntilFailure(*backend, rank, habit, [] {});
    failed[rank] = absl::Now();
    if (rank == kVictim) destroyed = absl::Now();
    return status;
  });
  EXPECT_LT(*std::max_element(failed.begin(), failed.end()) - destroyed, kNotice);
  for (int rank = 0; rank < kVictim; ++rank) {
    EXPECT_EQ(KindOf(statuses[rank]), ErrorKind::kBackend) << statuses[rank];
    EXPECT_THAT(std::string(statuses[rank].message()), HasSubstr(absl::StrCat("rank ", kVictim)));
  }
}

}  // namespace
}  // namespace syncline
