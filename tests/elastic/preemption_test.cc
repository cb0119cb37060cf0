// Ranks agree on the step at which they stop.
#include "syncline/preemption.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/testing/faults.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"
#include "syncline/tcp_store.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(1);

// Looks for notices often, so that tests are short.
Preemption::Options Quick(absl::Duration timeout = kLong) {
  return {timeout, absl::Milliseconds(1)};
}

std::shared_ptr<Preemption> Make(std::shared_ptr<Store> store, int rank, int size,
                                 const Preemption::Options& options = Quick()) {
  auto made = Preemption::Create(std::move(store), rank, size, options);
  EXPECT_TRUE(made.ok()) << made.status();
  return *made;
}

// A barrier for the threads of a test, in place of a step's collectives.
class Collective {
 public:
  explicit Collective(int size) : size_(size) {}

  absl::Status Run() {
    const Deadline deadline(kLong);
    absl::MutexLock lock(&mutex_);
    const int64_t mine = arrived_++ / size_;
    const auto is_done = [this, mine]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return arrived_ / size_ > mine;
    };
    if (deadline.Await(mutex_, absl::Condition(&is_done))) return absl::OkStatus();
    return TimeoutError("a rank is missing in the collective");
  }

 private:
  const int size_;
  absl::Mutex mutex_;
  int64_t arrived_ ABSL_GUARDED_BY(mutex_) = 0;
};

class PreemptionRanksTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }

  // The step at which each rank stops, if it begins with `first` and steps by `stride`; `work` is
  // what it does in a step.
  std::vector<int64_t> StopsOf(int64_t first, int64_t stride,
                               const std::function<absl::Status(int, Preemption&, int64_t)>& work) {
    std::vector<int64_t> stops(size(), -1);
    const auto store = std::make_shared<HashStore>();
    const auto outcomes = RunRanks(size(), [&](int rank) -> absl::Status {
      const auto preemption = Make(store, rank, size());
      for (int64_t step = first;; step += stride) {
        SYNCLINE_ASSIGN_OR_RETURN(const bool stops_here, preemption->Reached(step));
        if (stops_here) {
          stops[rank] = step;
          agreed_ = preemption->agreed_step();
          return absl::OkStatus();
        }
        SYNCLINE_RETURN_IF_ERROR(work(rank, *preemption, step));
      }
    });
    for (const absl::Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome;
    return stops;
  }

  std::atomic<int64_t> agreed_{-1};
};

INSTANTIATE_TEST_SUITE_P(Ranks, PreemptionRanksTest, testing::Values(1, 2, 3, 7));

TEST_P(PreemptionRanksTest, RanksThatWaitForEachOtherInEachStepStopAtTheSameOne) {
  Collective collective(size());
  const std::vector<int64_t> stops =
      StopsOf(0, 1, [&](int rank, Preemption& preemption, int64_t step) {
        if (rank == size() / 2 && step == 50) preemption.GiveNotice();
        return collective.Run();
      });
  EXPECT_GT(stops[0], 50);
  EXPECT_THAT(stops, Each(stops[0]));
  EXPECT_EQ(agreed_, stops[0]);
}

TEST_P(PreemptionRanksTest, RanksThatDoNotWaitForEachOtherStopAtTheSameStepToo) {
  const std::vector<int64_t> stops =
      StopsOf(0, 1, [&](int rank, Preemption& preemption, int64_t step) {
        if (rank == 0 && step == 1000) preemption.GiveNotice();
        if (rank % 2 == 1) std::this_thread::yield();
        return absl::OkStatus();
      });
  EXPECT_GT(stops[0], 1000);
  EXPECT_THAT(stops, Each(stops[0]));
}

TEST_P(PreemptionRanksTest, StepsMayBeFarApart) {
  const std::vector<int64_t> stops =
      StopsOf(100, 10, [&](int rank, Preemption& preemption, int64_t step) {
        if (rank == size() - 1 && step == 200) preemption.GiveNotice();
        return absl::OkStatus();
      });
  EXPECT_EQ(stops[0] % 10, 0);
  EXPECT_THAT(stops, Each(stops[0]));
  EXPECT_LE(agreed_, stops[0]);
  EXPECT_GT(agreed_, stops[0] - 10);
}

TEST_P(PreemptionRanksTest, ANoticeThatIsThereBeforeTheFirstStepStopsAllAtTheFirst) {
  const auto store = std::make_shared<HashStore>();
  ASSERT_TRUE(store->Set(Preemption::kNoticeKey, "the launcher's").ok());
  std::vector<std::shared_ptr<Preemption>> ranks;
  for (int rank = 0; rank < size(); ++rank) ranks.push_back(Make(store, rank, size()));
  const Deadline deadline(kLong);
  for (const auto& rank : ranks) {
    while (rank->agreed_step() < 0 && !deadline.Expired()) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(rank->agreed_step(), 0);
  }
  for (const auto& rank : ranks) {
    const auto stops = rank->Reached(40);
    ASSERT_TRUE(stops.ok()) << stops.status();
    EXPECT_TRUE(*stops);
  }
}

TEST_P(PreemptionRanksTest, WithoutANoticeNobodyStops) {
  const auto store = std::make_shared<HashStore>();
  const auto outcomes = RunRanks(size(), [&](int rank) -> absl::Status {
    const auto preemption = Make(store, rank, size());
    for (int64_t step = 0; step < 1000; ++step) {
      SYNCLINE_ASSIGN_OR_RETURN(const bool stops, preemption->Reached(step));
      EXPECT_FALSE(stops);
    }
    EXPECT_EQ(preemption->agreed_step(), -1);
    return absl::OkStatus();
  });
  for (const absl::Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome;
}

TEST(PreemptionTest, RankZeroMayTakeTheStoreWithItAsSoonAsItStops) {
  constexpr int kSize = 3;
  TCPStore::Options server;
  server.role = StoreConfig::Role::kServer;
  auto hosted = TCPStore::Create(server);
  ASSERT_TRUE(hosted.ok()) << hosted.status();
  const int port = (*hosted)->port();
  std::shared_ptr<Store> owner = *std::move(hosted);
  hosted = absl::UnknownError("moved");
  Countdown connected(kSize);
  const auto outcomes = RunRanks(kSize, [&](int rank) -> absl::Status {
    std::shared_ptr<Store> store = rank == 0 ? std::move(owner) : nullptr;
    if (store == nullptr) {
      TCPStore::Options client;
      client.port = port;
      SYNCLINE_ASSIGN_OR_RETURN(store, TCPStore::Create(client));
    }
    auto preemption = Make(store, rank, kSize);
    store.reset();
    connected.StepAndWait();
    if (rank == 2) preemption->GiveNotice();
    for (int64_t step = 0;; ++step) {
      SYNCLINE_ASSIGN_OR_RETURN(const bool stops, preemption->Reached(step));
      if (stops) return absl::OkStatus();
    }
  });
  for (const absl::Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome;
}

TEST(PreemptionTest, RanksThatDoNotAnswerAreNamed) {
  const auto store = std::make_shared<HashStore>();
  const auto rank1 = Make(store, 1, 4, Quick(absl::Seconds(2)));
  const auto rank3 = Make(store, 3, 4, Quick(absl::Seconds(2)));
  rank3->GiveNotice();
  for (const auto& rank : {rank1, rank3}) {
    const Deadline deadline(kLong);
    absl::StatusOr<bool> stops = false;
    for (int64_t step = 0; stops.ok() && !deadline.Expired(); ++step) stops = rank->Reached(step);
    ASSERT_FALSE(stops.ok());
    EXPECT_EQ(KindOf(stops.status()), ErrorKind::kTimeout) << stops.status();
    EXPECT_THAT(std::string(stops.status().message()), HasSubstr("rank 0, 2 of 4"));
    EXPECT_THAT(std::string(stops.status().message()), HasSubstr("2s"));
    EXPECT_EQ(RanksOf(stops.status()), std::vector<int>({0, 2}));
    EXPECT_EQ(rank->agreed_step(), -1);
  }
}

TEST(PreemptionTest, AnInterruptEndsTheWaitForTheOthers) {
  const auto rank0 = Make(std::make_shared<HashStore>(), 0, 2);
  rank0->GiveNotice();
  const absl::Status interrupted = InterruptedError("interrupted");
  const auto check = [&] { return interrupted; };
  const InterruptScope scope(check);
  const Deadline deadline(kLong);
  absl::StatusOr<bool> stops = false;
  for (int64_t step = 0; stops.ok() && !deadline.Expired(); ++step) {
    stops = rank0->Reached(step);
  }
  EXPECT_EQ(stops.status(), interrupted);
}

TEST(PreemptionTest, ItEndsAtOnceWhileTheOthersHaveNotAnswered) {
  const auto store = std::make_shared<HashStore>();
  auto rank0 = Make(store, 0, 2);
  rank0->GiveNotice();
  ASSERT_TRUE(store->Wait({"preempt/step/0"}, kLong).ok());
  const Deadline deadline(kLong);
  rank0.reset();
  EXPECT_FALSE(deadline.Expired());
}

TEST(PreemptionTest, StepsThatDoNotCountUpAreRefused) {
  const auto alone = Make(std::make_shared<HashStore>(), 0, 1);
  EXPECT_EQ(KindOf(alone->Reached(-1).status()), ErrorKind::kArgument);
  EXPECT_TRUE(alone->Reached(7).ok());
  EXPECT_TRUE(alone->Reached(7).ok());
  const absl::Status back = alone->Reached(6).status();
  EXPECT_EQ(KindOf(back), ErrorKind::kArgument);
  EXPECT_THAT(std::string(back.message()), HasSubstr("got 6 after 7"));
}

TEST(PreemptionTest, BadArgumentsAreRefused) {
  const auto store = std::make_shared<HashStore>();
  const auto kind = [](const auto& made) { return KindOf(made.status()); };
  EXPECT_EQ(kind(Preemption::Create(nullptr, 0, 1, {})), ErrorKind::kArgument);
  EXPECT_EQ(kind(Preemption::Create(store, -1, 1, {})), ErrorKind::kArgument);
  EXPECT_EQ(kind(Preemption::Create(store, 2, 2, {})), ErrorKind::kArgument);
  EXPECT_EQ(kind(Preemption::Create(store, 0, 1, {absl::ZeroDuration(), absl::Seconds(1)})),
            ErrorKind::kArgument);
}

TEST(PreemptionTest, WhatIsNoStepInTheStoreIsAnError) {
  // After the largest number there is no next step.
  for (const char* text : {"soon", "-2", "9223372036854775807", "9223372036854775808"}) {
    const auto store = std::make_shared<HashStore>();
    ASSERT_TRUE(store->Set("preempt/step/1", text).ok());
    const auto rank0 = Make(store, 0, 2);
    rank0->GiveNotice();
    const Deadline deadline(kLong);
    absl::StatusOr<bool> stops = false;
    for (int64_t step = 0; stops.ok() && !deadline.Expired(); ++step) stops = rank0->Reached(step);
    EXPECT_THAT(std::string(stops.status().message()),
                HasSubstr(absl::StrCat("'", text, "' is not a step")));
  }
}

TEST(PreemptionTest, WhereNoThreadCanBeStartedThereIsNone) {
  const ScopedFault no_thread("pthread_create");
  const auto made = Preemption::Create(std::make_shared<HashStore>(), 0, 1, {});
  EXPECT_EQ(KindOf(made.status()), ErrorKind::kBackend);
  EXPECT_THAT(std::string(made.status().message()),
              HasSubstr("cannot start a thread for the watch for preemption"));
}

}  // namespace
}  // namespace syncline
