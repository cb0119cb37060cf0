// What an interrupt ends, on every backend: see include/syncline/interrupt.h.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/hash_store.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "syncline/world.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

std::string Message(const absl::Status& status) { return std::string(status.message()); }

absl::Status Interrupted() { return InterruptedError("interrupted by the test"); }

WorldOptions Rank(const std::string& backend, std::shared_ptr<Store> store, int rank, int size) {
  WorldOptions options;
  options.backend = backend;
  options.store = std::move(store);
  options.rank = rank;
  options.size = size;
  options.timeout = kLong;
  return options;
}

class InterruptsTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Backends, InterruptsTest,
                         testing::Values("local", "shm", "gloo", "auto", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

using Call = std::function<absl::Status(ProcessGroup& group)>;

absl::Status Barrier(ProcessGroup& group) { return group.Barrier(); }

absl::Status AllReduce(ProcessGroup& group) {
  std::vector<float> elements(1 << 20);
  return group.AllReduce(Tensor::Of(elements));
}

absl::Status Recv(ProcessGroup& group) {
  std::vector<float> elements(10);
  return group.Recv(Tensor::Of(elements), 0).status();
}

// The second one's turn does not come.
absl::Status TwoBarriers(ProcessGroup& group) {
  const auto first = group.BarrierAsync();
  const absl::Status status = group.Barrier();
  if (first.ok()) (*first)->Wait().IgnoreError();
  return status;
}

absl::Status MonitoredBarrier(ProcessGroup& group) { return group.MonitoredBarrier(); }

struct Case {
  Call interrupted, other;  // What rank 1 and rank 0 call.
};

std::vector<Case> Cases() {
  return {{&Barrier, &Barrier},
          {&AllReduce, &AllReduce},
          {&Recv, &Barrier},
          {&TwoBarriers, &Barrier},
          {&MonitoredBarrier, &MonitoredBarrier}};
}

TEST_P(InterruptsTest, AnInterruptedCallFailsItsGroupOnAllRanksNamingTheRank) {
  for (const Case& each : Cases()) {
    auto store = std::make_shared<HashStore>();
    Countdown joined(3), failed(2);
    const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(Rank(GetParam(), store, rank, 3)));
      joined.StepAndWait();
      if (rank == 2) failed.Wait();
      absl::Status status;
      if (rank == 1) {
        const InterruptScope scope(&Interrupted);
        status = each.interrupted(*world->group());
      } else {
        status = (rank == 0 ? each.other : Call(&Barrier))(*world->group());
      }
      if (rank != 2) failed.StepAndWait();
      EXPECT_EQ(KindOf(world->group()->Barrier()), ErrorKind::kBackend);
      return status;
    });
    EXPECT_TRUE(IsInterrupted(statuses[1])) << statuses[1];
    EXPECT_THAT(Message(statuses[1]), HasSubstr("rank 1 of group 'default': "));
    EXPECT_THAT(Message(statuses[1]), HasSubstr("interrupted by the test"));
    for (int rank : {0, 2}) {
      EXPECT_EQ(KindOf(statuses[rank]), ErrorKind::kBackend) << statuses[rank];
      EXPECT_THAT(Message(statuses[rank]),
                  AllOf(HasSubstr("rank 1"), HasSubstr("interrupted by the test")));
    }
  }
}

TEST_P(InterruptsTest, AnInterruptedWaitForAWorkLeavesItAlone) {
  auto store = std::make_shared<HashStore>();
  Countdown waited(1);
  const auto statuses = RunRanks(2, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(Rank(GetParam(), store, rank, 2)));
    if (rank == 1) {
      waited.Wait();
      return world->group()->Barrier();
    }
    SYNCLINE_ASSIGN_OR_RETURN(auto work, world->group()->BarrierAsync());
    {
      const InterruptScope scope(&Interrupted);
      const absl::Status status = work->Wait();
      EXPECT_TRUE(IsInterrupted(status)) << status;
      EXPECT_THAT(Message(status),
                  AllOf(HasSubstr("barrier #0 goes on"), HasSubstr("by the test")));
    }
    EXPECT_FALSE(work->IsCompleted());
    waited.Step();
    return work->Wait();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

bool IsJoinRecord(const std::string& key) { return absl::StrContains(key, "slot/"); }

TEST_P(InterruptsTest, AnInterruptedJoinIsOverForAllAndCanBeTriedAgain) {
  auto store = std::make_shared<HashStore>();
  const auto statuses = RunRanks(2, [&](int rank) -> absl::Status {
    if (rank == 0) return World::Init(Rank(GetParam(), store, 0, 3)).status();
    // Once rank 0 waits, too.
    const auto check = [&] {
      const auto arrivals = store->Keys("");
      const bool both =
          arrivals.ok() && std::count_if(arrivals->begin(), arrivals->end(), IsJoinRecord) == 2;
      return both ? Interrupted() : absl::OkStatus();
    };
    const InterruptScope scope(check);
    return World::Init(Rank(GetParam(), store, 1, 3)).status();
  });
  EXPECT_TRUE(IsInterrupted(statuses[1])) << statuses[1];
  EXPECT_EQ(KindOf(statuses[0]), ErrorKind::kBackend) << statuses[0];
  EXPECT_THAT(Message(statuses[0]), HasSubstr("was interrupted by the test while it waited"));
  for (const absl::Status& status : RunRanks(3, [&](int rank) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(Rank(GetParam(), store, rank, 3)));
         return world->group()->Barrier();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(GroupTimeoutTest, AnEndlessTimeoutIsOneAndTheShortestIsNotNone) {
  const auto world = World::Init(Rank("local", nullptr, 0, 1));
  ASSERT_TRUE(world.ok()) << world.status();
  ProcessGroup& group = *(*world)->group();
  EXPECT_EQ(group.timeout(), kLong);
  ASSERT_TRUE(group.SetTimeout(absl::InfiniteDuration()).ok());
  EXPECT_EQ(group.timeout(), absl::InfiniteDuration());
  EXPECT_TRUE(group.Barrier().ok());
  ASSERT_TRUE(group.SetTimeout(absl::Nanoseconds(1) / 4).ok());
  EXPECT_EQ(group.timeout(), absl::Nanoseconds(1));
  EXPECT_EQ(KindOf(group.SetTimeout(absl::ZeroDuration())), ErrorKind::kArgument);
}

}  // namespace
}  // namespace syncline
