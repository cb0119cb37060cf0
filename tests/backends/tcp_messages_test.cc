// Sends and receives of backend tcp: which sends wait for whom.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/collective.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "tests/support/backend_config.h"

namespace syncline {
namespace {

using ::testing::Contains;

constexpr absl::Duration kTimeout = absl::Seconds(60);

// So many messages without a receive fill the window of a peer (kEagerWindow of
// backends/tcp/thresholds.h), in which a short one counts for 512 bytes.
constexpr int kWindow = (2 << 20) / 512;

class TcpMessagesTest : public testing::Test {
 protected:
  TcpMessagesTest() {
    const auto store = std::make_shared<HashStore>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([this, store, rank] {
        BackendConfig config = OnLoopback(store, rank, 2, kTimeout);
        auto made = BackendRegistry::Make("tcp", config);
        ASSERT_TRUE(made.ok()) << made.status();
        ranks_[rank] = *made;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Of one number, to the other rank.
  absl::Status Send(int from, int64_t number, int tag = 0, absl::Duration timeout = kTimeout) {
    Tensor tensor(&number, DType::kInt64, {1});
    return Run(from, Collective::Send(tensor, 1 - from, tag), timeout);
  }
  // -1 if it fails.
  int64_t Recv(int to, int tag = 0) {
    int64_t number = -1;
    Tensor tensor(&number, DType::kInt64, {1});
    const absl::Status status = Run(to, Collective::Recv(tensor, 1 - to, tag));
    EXPECT_TRUE(status.ok()) << status;
    return status.ok() ? number : -1;
  }
  absl::Status Run(int rank, const Collective& collective, absl::Duration timeout = kTimeout) {
    CallContext context;
    context.sequence = ++sequence_;
    context.deadline = Deadline(timeout);
    return RunAndWait(*ranks_[rank], collective, context).status();
  }

  std::shared_ptr<Backend> ranks_[2];
  std::atomic<uint64_t> sequence_{0};
};

TEST_F(TcpMessagesTest, BothRanksMaySendShortMessagesFirst) {
  for (int64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(Send(0, i).ok());
    ASSERT_TRUE(Send(1, 1000 + i).ok());
  }
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(Recv(1), i);
    EXPECT_EQ(Recv(0), 1000 + i);
  }
}

TEST_F(TcpMessagesTest, TheMemoryOfASendIsTheCallersAgain) {
  std::vector<int32_t> sent(16 << 10, 1);  // 64 KiB, the longest that needs no receive.
  const Tensor tensor(sent.data(), DType::kInt32, {16 << 10});
  for (int32_t i = 1; i <= 12; ++i) {
    sent.assign(sent.size(), i);
    ASSERT_TRUE(Run(0, Collective::Send(tensor, 1)).ok());
  }
  sent.assign(sent.size(), -1);
  std::vector<int32_t> received(sent.size());
  const Tensor target(received.data(), DType::kInt32, {16 << 10});
  for (int32_t i = 1; i <= 12; ++i) {
    ASSERT_TRUE(Run(1, Collective::Recv(target, 0)).ok());
    EXPECT_EQ(received, std::vector<int32_t>(sent.size(), i));
  }
}

// Around the sizes at which the first elements, or all, come without the receiver's consent; with
// and without a receive that waits for them, and more than the window holds.
TEST_F(TcpMessagesTest, MessagesOfAllSizesArriveWholeWhoeverComesFirst) {
  const std::vector<int64_t> counts = {
      0,       1,       1'010,           1'100,     (16 << 10) - 1,  16 << 10, (16 << 10) + 1,
      100'001, 200'001, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 1 << 20};
  constexpr int kEach = 4;  // From 512 KiB of each, beyond the window in all.
  for (const bool is_awaited : {true, false}) {
    for (const int64_t count : counts) {
      std::vector<std::vector<int32_t>> sent, received;
      for (int i = 0; i < kEach; ++i) {
        sent.emplace_back(count);
        received.emplace_back(count, -1);
        for (int64_t at = 0; at < count; ++at) sent[i][at] = static_cast<int32_t>(at * kEach + i);
      }
      std::vector<std::thread> threads;
      const auto start = [&](int rank, int i) {
        threads.emplace_back([&, rank, i] {
          std::vector<int32_t>& memory = rank == 0 ? sent[i] : received[i];
          const Tensor tensor(memory.data(), DType::kInt32, {count});
          const absl::Status status = Run(
              rank, rank == 0 ? Collective::Send(tensor, 1, i) : Collective::Recv(tensor, 0, i));
          EXPECT_TRUE(status.ok()) << status;
        });
      };
      // In the other order than they are received in.
      for (int i = 0; i < kEach; ++i) start(is_awaited ? 1 : 0, i);
      absl::SleepFor(absl::Milliseconds(5));
      for (int i = kEach - 1; i >= 0; --i) start(is_awaited ? 0 : 1, i);
      for (std::thread& thread : threads) thread.join();
      EXPECT_EQ(sent, received) << count << " elements, receives first: " << is_awaited;
    }
  }
}

// Frames that one system call has read, the last of them perhaps in part.
TEST_F(TcpMessagesTest, MessagesOfManySizesInARowArriveInOrderWhoeverComesFirst) {
  const auto count_of = [](int i) { return (i * 7919) % 2500; };  // Up to 10 KB.
  constexpr int kMessages = 2000;
  const auto exchange = [&](int from) {
    for (int i = 0; i < kMessages; ++i) {
      std::vector<int32_t> memory(count_of(i), from + i);
      const Tensor tensor(memory.data(), DType::kInt32, {count_of(i)});
      ASSERT_TRUE(Run(from, Collective::Send(tensor, 1 - from, i % 3)).ok());
    }
  };
  const auto take = [&](int to) {
    for (int i = 0; i < kMessages; ++i) {
      std::vector<int32_t> memory(count_of(i), -1);
      const Tensor tensor(memory.data(), DType::kInt32, {count_of(i)});
      ASSERT_TRUE(Run(to, Collective::Recv(tensor, 1 - to, i % 3)).ok());
      ASSERT_EQ(memory, std::vector<int32_t>(count_of(i), 1 - to + i)) << "message " << i;
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] { exchange(rank); });
    threads.emplace_back([&, rank] { take(rank); });
  }
  for (std::thread& thread : threads) thread.join();
}

// A longer one returns once its receiver has found that it fits.
TEST_F(TcpMessagesTest, ASendOfMoreThan64KiBWaitsForItsReceive) {
  std::vector<int32_t> memory((16 << 10) + 1);
  const Tensor tensor(memory.data(), DType::kInt32, {(16 << 10) + 1});
  std::atomic<bool> has_sent{false};
  std::thread sends([&] {
    EXPECT_TRUE(Run(0, Collective::Send(tensor, 1)).ok());
    has_sent = true;
  });
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_FALSE(has_sent);
  std::vector<int32_t> received(memory.size(), -1);
  const Tensor target(received.data(), DType::kInt32, {(16 << 10) + 1});
  EXPECT_TRUE(Run(1, Collective::Recv(target, 0)).ok());
  sends.join();
  EXPECT_EQ(received, memory);
}

// The elements may be on their way into memory that is the caller's again.
TEST_F(TcpMessagesTest, WhoGivesUpInTheMiddleOfAMessageGetsNothingMore) {
  std::vector<int32_t> sent(64 << 20, 1), received(64 << 20, 0);
  const Tensor source(sent.data(), DType::kInt32, {64 << 20});
  const Tensor target(received.data(), DType::kInt32, {64 << 20});
  std::thread sender([&] { Run(0, Collective::Send(source, 1)).IgnoreError(); });
  const absl::Status status = Run(1, Collective::Recv(target, 0), absl::Milliseconds(5));
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
  received.assign(received.size(), 0);
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(received, std::vector<int32_t>(received.size(), 0));
  ranks_[1] = nullptr;
  sender.join();
}

TEST_F(TcpMessagesTest, SendsThatFillTheWindowWaitUntilReceivesHaveTakenOthers) {
  std::atomic<int> sent{0};
  std::thread sender([&] {
    for (int i = 0; i < 3 * kWindow; ++i) {
      ASSERT_TRUE(Send(0, i).ok());
      ++sent;
    }
  });
  const Deadline deadline(kTimeout);
  while (sent < kWindow && !deadline.Expired()) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(sent, kWindow);
  for (int i = 0; i < 3 * kWindow; ++i) ASSERT_EQ(Recv(1), i);
  sender.join();
}

TEST_F(TcpMessagesTest, ALongMessageMayOvertakeAShortOneThatWaits) {
  for (int i = 0; i < kWindow; ++i) ASSERT_TRUE(Send(0, i).ok());
  std::thread waits([&] { EXPECT_TRUE(Send(0, 4711, 1).ok()); });
  absl::SleepFor(absl::Milliseconds(100));
  const Tensor sent = Tensor::Zeros(DType::kInt64, {100'000});
  const Tensor received = Tensor::Zeros(DType::kInt64, {100'000});
  std::thread overtakes([&] { EXPECT_TRUE(Run(0, Collective::Send(sent, 1, 2)).ok()); });
  EXPECT_TRUE(Run(1, Collective::Recv(received, 0, 2)).ok());
  overtakes.join();
  for (int i = 0; i < kWindow; ++i) ASSERT_EQ(Recv(1), i);
  EXPECT_EQ(Recv(1, 1), 4711);
  waits.join();
}

TEST_F(TcpMessagesTest, AShortMessageThatIsAwaitedPassesAFullWindowOfOthers) {
  for (int i = 0; i < kWindow; ++i) ASSERT_TRUE(Send(0, i).ok());
  std::thread waits([&] { EXPECT_TRUE(Send(0, -7).ok()); });  // For its receive.
  std::thread passes([&] { EXPECT_TRUE(Send(0, 4711, 1).ok()); });
  const Tensor nothing = Tensor::Zeros(DType::kInt64, {0});
  std::thread passes_too([&] { EXPECT_TRUE(Run(0, Collective::Send(nothing, 1, 2)).ok()); });
  EXPECT_EQ(Recv(1, 1), 4711);
  EXPECT_TRUE(Run(1, Collective::Recv(nothing, 0, 2)).ok());
  passes.join();
  passes_too.join();
  for (int i = 0; i < kWindow; ++i) ASSERT_EQ(Recv(1), i);
  EXPECT_EQ(Recv(1), -7);
  waits.join();
}

// Neither in the window, which both ranks keep for each other, nor in what the kernel takes.
TEST_F(TcpMessagesTest, LongMessagesThatWaitLeaveRoomForAShortOne) {
  constexpr int kLong = 4;
  const Tensor sent = Tensor::Zeros(DType::kInt64, {(1 << 20) / 8});
  std::vector<std::thread> wait;
  for (int i = 0; i < kLong; ++i) {
    wait.emplace_back([&, i] { EXPECT_TRUE(Run(0, Collective::Send(sent, 1, i)).ok()); });
  }
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_TRUE(Send(0, 4711, kLong).ok());  // Nobody receives, nor reads.
  for (int i = 0; i < kLong; ++i) {
    const Tensor received = Tensor::Zeros(DType::kInt64, {(1 << 20) / 8});
    EXPECT_TRUE(Run(1, Collective::Recv(received, 0, i)).ok());
  }
  EXPECT_EQ(Recv(1, kLong), 4711);
  for (std::thread& thread : wait) thread.join();
}

// One thread sleeps in poll(2) when its message comes, and another, which needs nothing more from
// the connection, reads it. The former would sleep on until it looks whether it was interrupted, 50
// ms later.
TEST_F(TcpMessagesTest, AThreadWhoseMessageAnotherHasReadIsWoken) {
  constexpr int kRounds = 60, kReads = 30;
  for (int i = 0; i < kRounds * kReads; ++i) ASSERT_TRUE(Send(1, i, 2).ok());
  int late = 0;
  for (int round = 0; round < kRounds; ++round) {
    absl::Time received;
    std::thread sleeps([&] {
      EXPECT_EQ(Recv(0, 1), round);
      received = absl::Now();
    });
    absl::SleepFor(absl::Milliseconds(2));
    std::thread reads([&] {
      for (int i = 0; i < kReads; ++i) EXPECT_EQ(Recv(0, 2), round * kReads + i);
    });
    ASSERT_TRUE(Send(1, round, 1).ok());
    const absl::Time sent = absl::Now();
    reads.join();
    sleeps.join();
    if (received - sent > absl::Milliseconds(40)) ++late;
  }
  // A busy machine makes some late.
  EXPECT_LT(late, kRounds / 2);
}

TEST_F(TcpMessagesTest, ASendWithoutARoomEndsAtItsDeadlineAndNamesWhoDoesNotReceive) {
  for (int i = 0; i < kWindow; ++i) ASSERT_TRUE(Send(0, i).ok());
  const absl::Status status = Send(0, 0, 0, absl::Milliseconds(200));
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
  EXPECT_THAT(RanksOf(status), Contains(1)) << status;
}

TEST_F(TcpMessagesTest, WhatWasSentBeforeARankLeftIsReceived) {
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Send(0, i).ok());
  ranks_[0] = nullptr;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Recv(1), i);
}

TEST_F(TcpMessagesTest, ASendToARankThatHasLeftIsAnErrorThatNamesIt) {
  ranks_[1] = nullptr;
  absl::Status status;
  // Until the news has come.
  for (const Deadline deadline(kTimeout); status.ok() && !deadline.Expired();) status = Send(0, 1);
  EXPECT_THAT(RanksOf(status), Contains(1)) << status;
}

}  // namespace
}  // namespace syncline
