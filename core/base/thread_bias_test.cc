#include "core/base/thread_bias.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "core/base/asymmetric_fence.h"
#include "gtest/gtest.h"

namespace syncline::base {
namespace {

constexpr int kThreads = 4;

// Not atomic: the exclusion is what is tested.
struct Guarded {
  BiasedMutex mutex;
  int64_t count = 0;
};

TEST(BiasedMutexTest, OneThreadLocksAgainAndAgain) {
  Guarded guarded;
  for (int i = 0; i < 1000; ++i) {
    const BiasedMutexLock lock(&guarded.mutex);
    ++guarded.count;
  }
  EXPECT_EQ(guarded.count, 1000);
}

// Each round ends a bias, at another point of what its owner does.
TEST(BiasedMutexTest, ThreadsThatComeWhileTheOwnerLocksExcludeEachOther) {
  for (int round = 0; round < 300; ++round) {
    Guarded guarded;
    std::atomic<bool> has_begun{false};
    std::atomic<int> in_section{0};
    std::atomic<bool> overlap{false};
    const int turns = 200 + round;
    const auto work = [&] {
      for (int i = 0; i < turns; ++i) {
        const BiasedMutexLock lock(&guarded.mutex);
        if (in_section.fetch_add(1, std::memory_order_relaxed) != 0) overlap = true;
        ++guarded.count;
        in_section.fetch_sub(1, std::memory_order_relaxed);
        has_begun.store(true, std::memory_order_relaxed);
      }
    };
    std::vector<std::thread> threads;
    threads.emplace_back(work);  // The owner, most times.
    while (!has_begun.load()) std::this_thread::yield();
    for (int i = 1; i < kThreads; ++i) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    EXPECT_FALSE(overlap) << "in round " << round;
    ASSERT_EQ(guarded.count, int64_t{kThreads} * turns) << "in round " << round;
  }
}

TEST(BiasedMutexTest, AThreadWaitsForTheOwner) {
  Guarded guarded;
  absl::Notification is_held, may_go;
  std::thread owner([&] {
    const BiasedMutexLock lock(&guarded.mutex);
    is_held.Notify();
    may_go.WaitForNotification();
    guarded.count = 1;
  });
  is_held.WaitForNotification();
  int64_t seen = 0;
  std::thread other([&] {
    const BiasedMutexLock lock(&guarded.mutex);
    seen = guarded.count;
  });
  may_go.Notify();
  other.join();
  owner.join();
  EXPECT_EQ(seen, 1);
}

TEST(BiasedCounterTest, CountsWhatAllThreadsAdd) {
  static BiasedCounter counter;  // Its bytes are zero.
  BiasedCounter::Owner owner{0};
  counter.Add(owner, 1);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) {
        counter.Add(owner, 2);
        counter.Add(owner, -1);
      }
    });
  }
  for (int j = 0; j < 1000; ++j) counter.Add(owner, 1);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), 1 + (kThreads + 1) * 1000);
}

// Dekker's algorithm: without the fences both threads miss each other now and then.
TEST(AsymmetricFenceTest, OneOfTwoThreadsSeesTheOther) {
  for (int round = 0; round < 5000; ++round) {
    std::atomic<int> ready{0};
    std::atomic<bool> frequent{false}, rare{false};
    bool frequent_saw = false, rare_saw = false;
    const auto meet = [&] {
      ready.fetch_add(1);
      while (ready.load() != 2) {
      }
    };
    std::thread thread([&] {
      meet();
      frequent.store(true, std::memory_order_relaxed);
      AsymmetricThreadFenceLight();
      frequent_saw = rare.load(std::memory_order_relaxed);
    });
    meet();
    rare.store(true, std::memory_order_relaxed);
    AsymmetricThreadFenceHeavy();
    rare_saw = frequent.load(std::memory_order_relaxed);
    thread.join();
    ASSERT_TRUE(frequent_saw || rare_saw) << "in round " << round;
  }
}

}  // namespace
}  // namespace syncline::base
