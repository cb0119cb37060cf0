#include "core/group/operation_queue.h"

#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "core/testing/faults.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(OperationQueueTest, OperationsTakeEffectInTheOrderOfTheirNumbers) {
  std::vector<uint64_t> order;
  {
    OperationQueue queue;
    auto record = [&order](uint64_t number) {
      return [&order, number] { order.push_back(number); };
    };
    EXPECT_TRUE(queue.Post(record).ok());
    EXPECT_TRUE(queue.Post(record).ok());
    auto now = [&order](uint64_t number) {
      order.push_back(number);
      return absl::OkStatus();
    };
    EXPECT_TRUE(queue.Run(Deadline(absl::Seconds(20)), now).ok());
    EXPECT_TRUE(queue.Post(record).ok());
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
}

TEST(OperationQueueTest, ManyThreadsNeverRunTwoOperationsAtOnce) {
  constexpr int kThreads = 8;
  constexpr int kCalls = 500;
  OperationQueue queue;
  int unguarded = 0;  // A race unless the queue orders the accesses.
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kCalls; ++i) {
        if ((i + t) % 2 == 0) {
          queue.Post([&](uint64_t) { return [&] { ++unguarded; }; }).IgnoreError();
          continue;
        }
        queue
            .Run(Deadline(absl::Seconds(20)),
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
      queue.Run(Deadline(absl::Seconds(20)), [](uint64_t) { return absl::OkStatus(); }).ok());
  EXPECT_EQ(unguarded, kThreads * kCalls);
}

TEST(OperationQueueTest, NumbersGrowInTheOrderOfExecutionWhoeverRuns) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 2000;
  std::vector<uint64_t> order;  // A race unless the queue orders the accesses.
  {
    OperationQueue queue;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kCalls; ++i) {
          // Mostly calls that find the queue idle or just not; seldom one for the queue's thread.
          if (t == 0 && i % 50 == 0) {
            auto post = [&order](uint64_t number) {
              return [&order, number] { order.push_back(number); };
            };
            EXPECT_TRUE(queue.Post(post).ok());
            continue;
          }
          auto run = [&order](uint64_t number) {
            order.push_back(number);
            return absl::OkStatus();
          };
          EXPECT_TRUE(queue.Run(Deadline(absl::Seconds(60)), run).ok());
          if (t == 1 && i % 50 == 0) queue.AwaitIdle(Deadline(absl::Milliseconds(1)));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  ASSERT_EQ(order.size(), size_t{kThreads} * kCalls);
  for (size_t i = 0; i < order.size(); ++i) ASSERT_EQ(order[i], i);
}

// A call that found the queue idle runs without the lock; others must notice it and its end.
TEST(OperationQueueTest, ACallThatFoundTheQueueIdleIsSeenByAllOthers) {
  auto queue = std::make_unique<OperationQueue>();
  absl::Notification runs, may_end, posted_ran, destroyed;
  std::thread caller([&] {
    EXPECT_TRUE(queue
                    ->Run(Deadline(absl::Seconds(60)),
                          [&](uint64_t) {
                            runs.Notify();
                            may_end.WaitForNotification();
                            return absl::OkStatus();
                          })
                    .ok());
  });
  runs.WaitForNotification();
  EXPECT_FALSE(queue->IsIdle());
  queue->AwaitIdle(Deadline(absl::Milliseconds(20)));  // Gives up.
  EXPECT_FALSE(queue->IsIdle());
  EXPECT_TRUE(queue->Post([&](uint64_t) { return [&] { posted_ran.Notify(); }; }).ok());
  const absl::Status late =
      queue->Run(Deadline(absl::Milliseconds(20)), [](uint64_t) { return absl::OkStatus(); });
  EXPECT_EQ(KindOf(late), ErrorKind::kTimeout) << late;
  std::thread destroyer([&] {
    queue.reset();
    destroyed.Notify();
  });
  EXPECT_FALSE(destroyed.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
  EXPECT_FALSE(posted_ran.HasBeenNotified());
  may_end.Notify();
  destroyer.join();
  caller.join();
  EXPECT_TRUE(posted_ran.HasBeenNotified());
}

// While one thread makes all calls, they take nothing that others would have to free. Each round
// has others come at another point of what that thread does.
TEST(OperationQueueTest, NumbersHaveNoGapsWhenOthersJoinTheFirstThread) {
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<uint64_t> order;  // A race unless the queue orders the accesses.
    std::atomic<bool> has_begun{false};
    const int calls = 50 + round;
    {
      OperationQueue queue;
      const auto record = [&order](uint64_t number) {
        order.push_back(number);
        return absl::OkStatus();
      };
      std::vector<std::thread> threads;
      threads.emplace_back([&] {
        for (int i = 0; i < calls; ++i) {
          EXPECT_TRUE(queue.Run(Deadline(absl::Seconds(60)), record).ok());
          has_begun.store(true, std::memory_order_relaxed);
        }
      });
      while (!has_begun.load()) std::this_thread::yield();
      threads.emplace_back([&] {
        for (int i = 0; i < calls; ++i) {
          EXPECT_TRUE(queue.Run(Deadline(absl::Seconds(60)), record).ok());
        }
      });
      threads.emplace_back([&] {
        for (int i = 0; i < calls; ++i) {
          EXPECT_TRUE(queue
                          .Post([&](uint64_t number) {
                            return [&order, number] { order.push_back(number); };
                          })
                          .ok());
        }
      });
      for (std::thread& thread : threads) thread.join();
      queue.AwaitIdle(Deadline(absl::Seconds(60)));
    }
    ASSERT_EQ(order.size(), size_t{3} * calls);
    for (size_t i = 0; i < order.size(); ++i) ASSERT_EQ(order[i], i) << "in round " << round;
  }
}

// Each queue ends right after a call of another thread: what frees it must not be used any more.
TEST(OperationQueueTest, AQueueMayBeDestroyedAsSoonAsItsLastCallHasRun) {
  for (int i = 0; i < 300; ++i) {
    auto queue = std::make_unique<OperationQueue>();
    absl::Notification runs;
    std::thread caller([&runs, queue = queue.get()] {
      EXPECT_TRUE(queue
                      ->Run(Deadline(absl::Seconds(60)),
                            [&runs](uint64_t) {
                              runs.Notify();
                              return absl::OkStatus();
                            })
                      .ok());
    });
    runs.WaitForNotification();
    queue.reset();
    caller.join();
  }
}

TEST(OperationQueueTest, WhatAnOperationHoldsIsReleasedOnceItHasRun) {
  OperationQueue queue;
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> watch = held;
  EXPECT_TRUE(queue.Post([&](uint64_t) { return [held] {}; }).ok());
  held = nullptr;
  EXPECT_TRUE(
      queue.Run(Deadline(absl::Seconds(20)), [](uint64_t) { return absl::OkStatus(); }).ok());
  EXPECT_TRUE(watch.expired());
}

TEST(OperationQueueTest, ACallGivesUpAtItsDeadlineIfItsTurnHasNotCome) {
  OperationQueue queue;
  absl::Notification go_on;
  EXPECT_TRUE(queue.Post([&](uint64_t) { return [&] { go_on.WaitForNotification(); }; }).ok());
  bool has_run = false;
  absl::Status status = queue.Run(Deadline(absl::Milliseconds(50)), [&](uint64_t) {
    has_run = true;
    return absl::OkStatus();
  });
  go_on.Notify();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(
      queue.Run(Deadline(absl::Seconds(20)), [](uint64_t) { return absl::OkStatus(); }).ok());
  EXPECT_FALSE(has_run);
}

absl::Status Interrupted() { return InterruptedError("interrupted"); }

TEST(OperationQueueTest, AnInterruptedCallWhoseTurnHasNotComeNeverRuns) {
  OperationQueue queue;
  absl::Notification go_on;
  EXPECT_TRUE(queue.Post([&](uint64_t) { return [&] { go_on.WaitForNotification(); }; }).ok());
  bool has_run = false;
  {
    const InterruptScope scope(&Interrupted);
    EXPECT_EQ(queue.Run(Deadline(absl::Seconds(60)),
                        [&](uint64_t) {
                          has_run = true;
                          return absl::OkStatus();
                        }),
              Interrupted());
  }
  go_on.Notify();
  EXPECT_TRUE(
      queue.Run(Deadline(absl::Seconds(20)), [](uint64_t) { return absl::OkStatus(); }).ok());
  EXPECT_FALSE(has_run);
}

TEST(OperationQueueTest, AnInterruptedCallThatRunsOnTheQueuesThreadIsEndedAndAwaited) {
  OperationQueue queue;
  absl::Notification has_begun, end;
  EXPECT_TRUE(queue
                  .Post([&](uint64_t) {
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
  const absl::Status status = queue.Run(
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

TEST(OperationQueueTest, AnOperationThatThrowsLeavesTheQueueToOthers) {
  OperationQueue queue;
  auto throws = [](uint64_t) -> absl::Status { throw std::bad_alloc(); };
  EXPECT_THROW(queue.Run(Deadline(absl::Seconds(20)), throws).IgnoreError(), std::bad_alloc);
  EXPECT_TRUE(queue.IsIdle());
  EXPECT_TRUE(queue
                  .Run(Deadline(absl::Seconds(20)),
                       [](uint64_t number) {
                         return number == 1 ? absl::OkStatus()
                                            : absl::InternalError("not the second");
                       })
                  .ok());
}

TEST(OperationQueueTest, QueuesMayShareTheirNumbers) {
  auto numbers = std::make_shared<OperationQueue::SequenceCounter>(5);
  OperationQueue a(numbers), b(numbers);
  std::vector<uint64_t> seen;
  for (OperationQueue* queue : {&a, &b, &a}) {
    auto record = [&](uint64_t number) {
      seen.push_back(number);
      return absl::OkStatus();
    };
    EXPECT_TRUE(queue->Run(Deadline(absl::Seconds(20)), record).ok());
  }
  EXPECT_THAT(seen, ElementsAre(5, 6, 7));
}

TEST(OperationQueueTest, AQueueIsIdleOnceNothingRunsOrIsQueued) {
  OperationQueue queue;
  EXPECT_TRUE(queue.IsIdle());
  absl::Notification go_on;
  EXPECT_TRUE(queue.Post([&](uint64_t) { return [&] { go_on.WaitForNotification(); }; }).ok());
  EXPECT_FALSE(queue.IsIdle());
  go_on.Notify();
  EXPECT_TRUE(
      queue.Run(Deadline(absl::Seconds(20)), [](uint64_t) { return absl::OkStatus(); }).ok());
}

TEST(OperationQueueTest, AnOperationMayDestroyItsQueue) {
  auto queue = std::make_unique<OperationQueue>();
  absl::Notification go_on, done;
  bool second_has_run = false;
  EXPECT_TRUE(queue
                  ->Post([&](uint64_t) {
                    return [&] {
                      go_on.WaitForNotification();
                      queue = nullptr;
                      done.Notify();
                    };
                  })
                  .ok());
  EXPECT_TRUE(queue->Post([&](uint64_t) { return [&] { second_has_run = true; }; }).ok());
  go_on.Notify();
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(second_has_run);
}

TEST(OperationQueueTest, WhereNoThreadCanBeStartedNothingIsQueued) {
  OperationQueue queue;
  {
    const ScopedFault no_thread("pthread_create");
    bool has_issued = false;
    const absl::Status status = queue.Post([&](uint64_t) {
      has_issued = true;
      return [] {};
    });
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot start a thread for operations"));
    EXPECT_FALSE(has_issued);
    EXPECT_TRUE(queue.IsIdle());
  }
  EXPECT_TRUE(queue.Post([](uint64_t) { return [] {}; }).ok());
}

}  // namespace
}  // namespace syncline::group
