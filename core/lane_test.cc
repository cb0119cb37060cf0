#include "core/lane.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;

TEST(LaneTest, OperationsTakeEffectInTheOrderOfTheirNumbers) {
  std::vector<uint64_t> order;
  {
    Lane lane;
    auto record = [&order](uint64_t number) {
      return [&order, number] { order.push_back(number); };
    };
    lane.Post(record);
    lane.Post(record);
    auto now = [&order](uint64_t number) {
      order.push_back(number);
      return absl::OkStatus();
    };
    EXPECT_TRUE(lane.Run(now).ok());
    lane.Post(record);
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
          lane.Post([&](uint64_t) { return [&] { ++unguarded; }; });
          continue;
        }
        lane.Run([&](uint64_t) {
              ++unguarded;
              return absl::OkStatus();
            })
            .IgnoreError();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(lane.Run([](uint64_t) { return absl::OkStatus(); }).ok());
  EXPECT_EQ(unguarded, kThreads * kCalls);
}

TEST(LaneTest, WhatAnOperationHoldsIsReleasedOnceItHasRun) {
  Lane lane;
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> watch = held;
  lane.Post([&](uint64_t) { return [held] {}; });
  held = nullptr;
  EXPECT_TRUE(lane.Run([](uint64_t) { return absl::OkStatus(); }).ok());
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace syncline
