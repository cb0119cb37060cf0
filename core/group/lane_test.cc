#include "core/group/lane.h"

#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "core/base/deadline.h"
#include "core/base/interrupt.h"
#include "core/base/status.h"
#include "core/testing/faults.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LaneTest, OperationsTakeEffectInTheOrderOfTheirNumbers) {
  std::vector<uint64_t> order;
  {
    Lane lane;
    auto record = [&order](uint64_t number) {
      return [&order, number] { order.push_back(number); };
    };
    EXPECT_TRUE(lane.Post(record).ok());
    EXPECT_TRUE(lane.Post(record).ok());
    auto now = [&order](uint64_t number) {
      order.push_back(number);
      return absl::OkStatus();
    };
    EXPECT_TRUE(lane.Run(Deadline(absl::Seconds(20)), now).ok());
    EXPECT_TRUE(lane.Post(record).ok());
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
}

TEST(LaneTest, ManyThreadsNeverRunTwoOperationsAtOnce) {
  constexpr int kThreads = 8;
  constexpr int kCalls = 500;
  Lane lane;
  int unguarded = 0;  // A race unless the lane orders the accesses.
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kCalls; ++i) {
        if ((i + t) % 2 == 0) {
          lane.Post([&](uint64_t) { return [&] { ++unguarded; }; }).IgnoreError();
          continue;
        }
        lane.Run(Deadline(absl::Seconds(20)),
                 [&](uint64_t) {
                   ++unguarded;
                   return absl::OkStatus();
                 })
            .IgnoreError();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(
      lane.Run(Deadline(absl::Seconds(20)), [](uint64_t) { return absl::OkStatus(); }).ok());
  EXPECT_EQ(unguarded, kThreads * kCalls);
}

TEST(LaneTest, WhatAnOperationHoldsIsReleasedOnceItHasRun) {
  Lane lane;
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> watch = held;
  EXPECT_TRUE(lane.Post([&](uint64_t) { return [held] {}; }).ok());
  held = nullptr;
  EXPECT_TRUE(
      lane.Run(Deadline(absl::Seconds(20)), [](uint64_t) { return absl::OkStatus(); }).ok());
  EXPECT_TRUE(watch.expired());
}

TEST(LaneTest, ACallGivesUpAtItsDeadlineIfItsTurnHasNotCome) {
  Lane lane;
  absl::Notification go_on;
  EXPECT_TRUE(lane.Post([&](uint64_t) { return [&] { go_on.WaitForNotification(); }; }).ok());
  bool has_run = false;
  absl::Status status = lane.Run(Deadline(absl::Milliseconds(50)), [&](uint64_t) {
    has_run = true;
    return absl::OkStatus();
  });
  go_on.Notify();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(
      lane.Run(Deadline(absl::Seconds(20)), [](uint64_t) { return absl::OkStatus(); }).ok());
  EXPECT_FALSE(has_run);
}

absl::Status Interrupted() { return InterruptedError("interrupted"); }

TEST(LaneTest, AnInterruptedCallWhoseTurnHasNotComeNeverRuns) {
  Lane lane;
  absl::Notification go_on;
  EXPECT_TRUE(lane.Post([&](uint64_t) { return [&] { go_on.WaitForNotification(); }; }).ok());
  bool has_run = false;
  {
    const InterruptScope scope(&Interrupted);
    EXPECT_EQ(lane.Run(Deadline(absl::Seconds(60)),
                       [&](uint64_t) {
                         has_run = true;
                         return absl::OkStatus();
                       }),
              Interrupted());
  }
  go_on.Notify();
  EXPECT_TRUE(
      lane.Run(Deadline(absl::Seconds(20)), [](uint64_t) { return absl::OkStatus(); }).ok());
  EXPECT_FALSE(has_run);
}

TEST(LaneTest, AnInterruptedCallThatRunsOnTheLanesThreadIsEndedAndAwaited) {
  Lane lane;
  absl::Notification has_begun, end;
  EXPECT_TRUE(lane.Post([&](uint64_t) {
                    return [&] { has_begun.WaitForNotificationWithTimeout(absl::Seconds(20)); };
                  })
                  .ok());
  const auto check = [&] {
    if (!has_begun.HasBeenNotified()) {
      has_begun.Notify();
      return absl::OkStatus();
    }
    return Interrupted();
  };
  const InterruptScope scope(check);
  const absl::Status status = lane.Run(
      Deadline(absl::Seconds(60)),
      [&](uint64_t) {
        end.WaitForNotification();
        return BackendError("it was ended");
      },
      [&](const absl::Status& interruption) {
        EXPECT_EQ(interruption, Interrupted());
        end.Notify();
      });
  EXPECT_EQ(status, BackendError("it was ended"));
}

TEST(LaneTest, AnOperationThatThrowsLeavesTheLaneToOthers) {
  Lane lane;
  auto throws = [](uint64_t) -> absl::Status { throw std::bad_alloc(); };
  EXPECT_THROW(lane.Run(Deadline(absl::Seconds(20)), throws).IgnoreError(), std::bad_alloc);
  EXPECT_TRUE(lane.IsIdle());
  EXPECT_TRUE(lane.Run(Deadline(absl::Seconds(20)),
                       [](uint64_t number) {
                         return number == 1 ? absl::OkStatus()
                                            : absl::InternalError("not the second");
                       })
                  .ok());
}

TEST(LaneTest, LanesMayShareTheirNumbers) {
  auto numbers = std::make_shared<Lane::Numbers>(5);
  Lane a(numbers), b(numbers);
  std::vector<uint64_t> seen;
  for (Lane* lane : {&a, &b, &a}) {
    auto record = [&](uint64_t number) {
      seen.push_back(number);
      return absl::OkStatus();
    };
    EXPECT_TRUE(lane->Run(Deadline(absl::Seconds(20)), record).ok());
  }
  EXPECT_THAT(seen, ElementsAre(5, 6, 7));
}

TEST(LaneTest, ALaneIsIdleOnceNothingRunsOrIsQueued) {
  Lane lane;
  EXPECT_TRUE(lane.IsIdle());
  absl::Notification go_on;
  EXPECT_TRUE(lane.Post([&](uint64_t) { return [&] { go_on.WaitForNotification(); }; }).ok());
  EXPECT_FALSE(lane.IsIdle());
  go_on.Notify();
  EXPECT_TRUE(
      lane.Run(Deadline(absl::Seconds(20)), [](uint64_t) { return absl::OkStatus(); }).ok());
}

TEST(LaneTest, AnOperationMayDestroyItsLane) {
  auto lane = std::make_unique<Lane>();
  absl::Notification go_on, done;
  bool second_has_run = false;
  EXPECT_TRUE(lane->Post([&](uint64_t) {
                    return [&] {
                      go_on.WaitForNotification();
                      lane = nullptr;
                      done.Notify();
                    };
                  })
                  .ok());
  EXPECT_TRUE(lane->Post([&](uint64_t) { return [&] { second_has_run = true; }; }).ok());
  go_on.Notify();
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(second_has_run);
}

TEST(LaneTest, WhereNoThreadCanBeStartedNothingIsQueued) {
  Lane lane;
  {
    const ScopedFault no_thread("pthread_create");
    bool has_issued = false;
    const absl::Status status = lane.Post([&](uint64_t) {
      has_issued = true;
      return [] {};
    });
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot start a thread for operations"));
    EXPECT_FALSE(has_issued);
    EXPECT_TRUE(lane.IsIdle());
  }
  EXPECT_TRUE(lane.Post([](uint64_t) { return [] {}; }).ok());
}

}  // namespace
}  // namespace syncline
