#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/shm/point_to_point.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/status.h"
#include "tests/backends/shm_ranks.h"
#include "tests/support/page_trap.h"

namespace syncline::shm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

// Bytes of a message that fills a rendezvous buffer.
constexpr int64_t kLong = 1 << 20;

class PointToPointTest : public testing::Test {
 protected:
  static constexpr int kRanks = 3;

  explicit PointToPointTest(int size = kRanks) : ranks_(size) {
    for (int rank = 0; rank < size; ++rank) {
      point_to_point_.push_back(std::make_unique<PointToPoint>(ranks_.group(rank), NodeOptions()));
    }
  }

  absl::Status Send(int from, int to, const Tensor& tensor, int tag = 0,
                    absl::Duration timeout = kTimeout) {
    const Collective send = Collective::Send(tensor, to, tag);
    CallContext context;
    context.deadline = Deadline(timeout);
    context.collective = &send;
    return point_to_point_[from]->Send(tensor, to, context);
  }

  absl::StatusOr<int> Recv(int to, int from, const Tensor& tensor, int tag = 0,
                           absl::Duration timeout = kTimeout) {
    const Collective recv = Collective::Recv(tensor, from, tag);
    CallContext context;
    context.deadline = Deadline(timeout);
    context.collective = &recv;
    return point_to_point_[to]->Recv(tensor, from, context);
  }

  // A thread of a rank.
  void Start(const std::function<void()>& body) { threads_.emplace_back(body); }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  // Waits until rank `to` waits for, or reads, the data of so many messages from rank `from`.
  void AwaitMatched(int from, int to, int count) {
    const Deadline deadline(kTimeout);
    const auto count_matched = [&] {
      int matched = 0;
      for (size_t i = 0; i < ranks_.layout().sizes().message_slots; ++i) {
        const uint32_t state = ranks_.layout().message_slot(from, to, i).state.load();
        if (state == MessageSlot::kMatched || state == MessageSlot::kTransferring) ++matched;
      }
      return matched;
    };
    while (count_matched() < count) {
      ASSERT_FALSE(deadline.Expired());
      std::this_thread::yield();
    }
  }

  static Tensor Filled(int value, int64_t count = kLong) {
    const Tensor tensor = Tensor::Zeros(DType::kUInt8, {count});
    std::memset(tensor.data(), value, count);
    return tensor;
  }
  static int64_t Wrong(const Tensor& tensor, int value) {
    const auto* const begin = tensor.data_as<uint8_t>();
    return std::count_if(begin, begin + tensor.numel(), [=](uint8_t it) { return it != value; });
  }

  ShmRanks ranks_;
  std::vector<std::unique_ptr<PointToPoint>> point_to_point_;

 private:
  std::vector<std::thread> threads_;
};

TEST_F(PointToPointTest, AReceiveFromAnyRankTakesTheMessageThatCameFirst) {
  const Tensor number = Tensor::Zeros(DType::kInt32, {1});
  const auto send = [&](int from, int value) {
    *number.data_as<int32_t>() = value;
    ASSERT_TRUE(Send(from, 0, number).ok());
  };
  std::vector<int> senders;
  const auto receive = [&] { senders.push_back(Recv(0, kAnySource, number).value()); };
  // Rank 1 has always one more on the way.
  for (int i = 0; i < 3; ++i) send(1, i);
  receive();
  send(2, 0);
  for (int i = 0; i < 3; ++i) {
    send(1, 3 + i);
    receive();
  }
  receive();
  EXPECT_THAT(senders, ElementsAre(1, 1, 1, 1, 2)) << "after those of rank 1 that came before";
}

TEST_F(PointToPointTest, ASenderThatNeverPausesDoesNotKeepOthersFromBeingReceived) {
  const Tensor number = Tensor::Zeros(DType::kInt32, {1});
  int from_2 = 0;
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(Send(1, 0, number).ok());
  ASSERT_TRUE(Send(2, 0, number).ok());
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(Send(1, 0, number).ok());
    if (Recv(0, kAnySource, number).value() == 2) ++from_2;
  }
  EXPECT_EQ(from_2, 1);
}

// Of so many ranks each pair has few slots for messages.
class FewSlotsTest : public PointToPointTest {
 protected:
  FewSlotsTest() : PointToPointTest(65) {
    EXPECT_LT(ranks_.layout().sizes().message_slots, kMessages / 2);
  }

  static constexpr int kMessages = 40;
  // Short ones travel in the slot, long ones in an eager payload.
  static int64_t SizeOf(int message) { return message % 2 == 0 ? 5 : 200; }
};

TEST_F(FewSlotsTest, AMessageThatIsAwaitedPassesAllThatAreNot) {
  Start([&] {
    for (int tag = 0; tag < kMessages; ++tag) {
      EXPECT_TRUE(Send(0, 1, Filled(tag, SizeOf(tag)), tag).ok());
    }
  });
  for (int tag = kMessages - 1; tag >= 0; --tag) {
    const Tensor tensor = Filled(-1, SizeOf(tag));
    const auto source = Recv(1, 0, tensor, tag);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ(Wrong(tensor, tag), 0) << tag;
  }
  Join();
}

TEST_F(FewSlotsTest, MessagesOfOneTagStayInOrder) {
  Start([&] {
    for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(Send(0, 1, Filled(i, 5), 1).ok());
    EXPECT_TRUE(Send(0, 1, Filled(100, 5), 2).ok());
    for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(Send(0, 1, Filled(50 + i, 5), 1).ok());
  });
  const Tensor tensor = Filled(0, 5);
  ASSERT_TRUE(Recv(1, 0, tensor, 2).ok());
  EXPECT_EQ(Wrong(tensor, 100), 0);
  for (int i = 0; i < 2 * kMessages; ++i) {
    ASSERT_EQ(Recv(1, i % 3 == 0 ? kAnySource : 0, tensor, 1).value(), 0);
    EXPECT_EQ(Wrong(tensor, i < kMessages ? i : 10 + i), 0) << i;
  }
  Join();
}

TEST_F(FewSlotsTest, AMessageThatWasPassedByIsQuotedIfItDoesNotFit) {
  Start([&] {
    for (int tag = 0; tag < kMessages; ++tag) {
      EXPECT_TRUE(Send(0, 1, Filled(tag, SizeOf(tag)), tag).ok());
    }
  });
  ASSERT_TRUE(Recv(1, 0, Filled(0, SizeOf(kMessages - 1)), kMessages - 1).ok());
  Join();
  const absl::Status status = Recv(1, 0, Filled(0, 7), kMessages - 2).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("uint8, 5 elements"), HasSubstr("uint8, 7 elements"),
                    HasSubstr(absl::StrCat("tag ", kMessages - 2))));
}

// The messages of ranks 1 and 2 to rank 0: each sends kMessages, of tags and sizes as they come.
// Those of one sender and tag are numbered from 0 on.
class MixedMessagesTest : public PointToPointTest {
 protected:
  static constexpr int kMessages = 4000, kTags = 3;
  static constexpr int kTagOfAny = kTags;  // Received from whoever has sent.

  MixedMessagesTest() {
    std::minstd_rand random(7);
    for (int sender : {1, 2}) {
      for (int i = 0; i < kMessages; ++i) {
        tags_[sender].push_back(static_cast<int>(random() % (kTags + 1)));
        sizes_[sender].push_back(int64_t{1} << (random() % 9));  // Inline, and of eager payloads.
      }
    }
  }

  struct Message {
    int32_t number;
    int64_t size;
  };
  // What a receive of the next message of `sender` and `tag` finds, in order.
  std::vector<Message> Expected(int sender, int tag) const {
    std::vector<Message> expected;
    for (int i = 0; i < kMessages; ++i) {
      if (tags_[sender][i] != tag) continue;
      expected.push_back({static_cast<int32_t>(expected.size()), sizes_[sender][i]});
    }
    return expected;
  }

  void StartSenders() {
    for (int sender : {1, 2}) {
      Start([this, sender] {
        int32_t numbers[kTags + 1] = {};
        for (int i = 0; i < kMessages; ++i) {
          const int tag = tags_[sender][i];
          // Of kTagOfAny all have one size, as the receiver does not know whose comes next.
          const Tensor tensor =
              Tensor::Zeros(DType::kInt32, {tag == kTagOfAny ? 1 : sizes_[sender][i]});
          tensor.data_as<int32_t>()[tensor.numel() - 1] = numbers[tag]++;
          ASSERT_TRUE(Send(sender, 0, tensor, tag).ok());
        }
      });
    }
  }
  void Receive(int sender, int tag, const Message& expected) {
    const Tensor tensor = Tensor::Zeros(DType::kInt32, {expected.size});
    ASSERT_EQ(Recv(0, sender, tensor, tag).value(), sender);
    ASSERT_EQ(tensor.data_as<int32_t>()[expected.size - 1], expected.number)
        << "from " << sender << " with tag " << tag;
  }
  void ReceiveFromAny() {
    size_t left = Expected(1, kTagOfAny).size() + Expected(2, kTagOfAny).size();
    int32_t next[3] = {};
    const Tensor tensor = Tensor::Zeros(DType::kInt32, {1});
    for (; left > 0; --left) {
      const int sender = Recv(0, kAnySource, tensor, kTagOfAny).value();
      ASSERT_EQ(*tensor.data_as<int32_t>(), next[sender]++) << "from " << sender;
    }
  }

  std::vector<int> tags_[3];
  std::vector<int64_t> sizes_[3];
};

TEST_F(MixedMessagesTest, ReceivesOfManyThreadsGetTheirOwn) {
  StartSenders();
  for (int sender : {1, 2}) {
    for (int tag = 0; tag < kTags; ++tag) {
      Start([this, sender, tag] {
        for (const Message& expected : Expected(sender, tag)) Receive(sender, tag, expected);
      });
    }
  }
  Start([this] { ReceiveFromAny(); });
  Join();
}

TEST_F(MixedMessagesTest, ReceivesOfOneThreadInAnotherOrderGetTheirOwn) {
  // Of one element, and few of each at a time, so that those which come too early find room.
  constexpr size_t kAtATime = 4;
  for (int sender : {1, 2}) sizes_[sender].assign(kMessages, 1);
  StartSenders();
  size_t next[3][kTags] = {};
  const auto receive_some = [&](int sender, int tag) {
    const std::vector<Message> expected = Expected(sender, tag);
    const size_t end = std::min(next[sender][tag] + kAtATime, expected.size());
    for (size_t& i = next[sender][tag]; i < end; ++i) Receive(sender, tag, expected[i]);
    return end < expected.size();
  };
  Start([this] { ReceiveFromAny(); });
  bool goes_on = true;
  while (goes_on) {
    goes_on = false;
    for (int tag : {2, 0, 1}) {
      for (int sender : {2, 1}) goes_on |= receive_some(sender, tag);
    }
  }
  Join();
}

// Where each of two ranks has a core, with a sender that is held in the middle of an eager message
// to rank 1, of which the first piece may have come.
class HeldSenderTest : public PointToPointTest {
 protected:
  static constexpr int64_t kBytes = kEagerMessageMaxBytes;

  HeldSenderTest() : PointToPointTest(2) {
    std::memset(memory_, 1, kBytes);
    trap_ = std::make_unique<PageTrap>(static_cast<char*>(memory_) + kBytes / 2);
  }
  ~HeldSenderTest() override {
    trap_->Release();
    Join();
    munmap(memory_, kBytes);
  }

  void StartSend() {
    Start([this] { sent_ = Send(0, 1, Tensor(memory_, DType::kUInt8, {kBytes})); });
    trap_->AwaitHeld();
  }
  void Release() {
    trap_->Release();
    Join();
    EXPECT_EQ(sent_, absl::OkStatus());
  }

  void* const memory_ =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::unique_ptr<PageTrap> trap_;
  absl::Status sent_;
};

TEST_F(HeldSenderTest, ItsReceiverWaitsNoLongerThanItsDeadline) {
  StartSend();
  const absl::Status received = Recv(1, 0, Filled(0, kBytes), 0, absl::Milliseconds(300)).status();
  EXPECT_EQ(KindOf(received), ErrorKind::kTimeout);
  EXPECT_THAT(received.message(), AllOf(HasSubstr("rank 0 ("), HasSubstr("after 300ms")));
  Release();
}

TEST_F(HeldSenderTest, TheWholeMessageArrivesOnceItGoesOn) {
  StartSend();
  const Tensor tensor = Filled(0, kBytes);
  absl::Status received;
  std::thread receiver([&] { received = Recv(1, 0, tensor).status(); });
  Release();
  receiver.join();
  EXPECT_EQ(received, absl::OkStatus());
  EXPECT_EQ(Wrong(tensor, 1), 0);
}

TEST_F(HeldSenderTest, HalfAMessageIsNotKeptForLater) {
  // So many that rank 1 copies those that come after them, to hand their slots back.
  const int64_t count = static_cast<int64_t>(ranks_.layout().sizes().message_slots) * 3 / 4;
  const Tensor number = Tensor::Zeros(DType::kInt32, {1});
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(Send(0, 1, number, 1), absl::OkStatus());
  StartSend();
  ASSERT_EQ(Send(0, 1, number, 2), absl::OkStatus());
  std::thread receiver([&] { EXPECT_EQ(Recv(1, 0, number, 2).status(), absl::OkStatus()); });
  // Where ranks share cores, the held message comes as a whole, and this one after it.
  const bool is_posted = !ranks_.group(0).waiter().is_oversubscribed();
  if (is_posted) receiver.join();
  Release();
  if (!is_posted) receiver.join();
  const Tensor tensor = Filled(0, kBytes);
  ASSERT_EQ(Recv(1, 0, tensor).status(), absl::OkStatus());
  EXPECT_EQ(Wrong(tensor, 1), 0);
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(Recv(1, 0, number, 1).status(), absl::OkStatus());
}

// With a receiver that is held in the middle of a long message from rank 0.
class HeldReceiverTest : public PointToPointTest {
 protected:
  HeldReceiverTest() : trap_(std::make_unique<PageTrap>(memory_)) {
    Start([this] { received_ = Recv(1, 0, held_).status(); });
    Start([this] { sent_ = Send(0, 1, Filled(1), 0, absl::Seconds(10)); });
    trap_->AwaitHeld();
  }
  ~HeldReceiverTest() override {
    Release();
    munmap(memory_, kLong);
  }

  // Waits until all of the held message is in rank 0's first rendezvous buffer.
  void AwaitWritten() {
    const auto& written = ranks_.layout().region(0).rendezvous_progress[0].written;
    const Deadline deadline(kTimeout);
    while (written.load() < kLong && !deadline.Expired()) std::this_thread::yield();
    ASSERT_GE(written.load(), uint64_t{kLong});
  }

  void Release() {
    trap_->Release();
    Join();
  }

  void* const memory_ =
      mmap(nullptr, kLong, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const Tensor held_{memory_, DType::kUInt8, {kLong}};
  std::unique_ptr<PageTrap> trap_;
  absl::Status received_, sent_;
};

TEST_F(HeldReceiverTest, ALongMessageToAnotherRankArrives) {
  const Tensor tensor = Filled(0);
  Start([&] { EXPECT_TRUE(Recv(2, 0, tensor).ok()); });
  EXPECT_EQ(Send(0, 2, Filled(2)), absl::OkStatus());
  Release();
  EXPECT_EQ(Wrong(tensor, 2), 0);
  EXPECT_EQ(received_, absl::OkStatus());
  EXPECT_EQ(sent_, absl::OkStatus());
  EXPECT_EQ(Wrong(held_, 1), 0);
}

TEST_F(HeldReceiverTest, ALongMessageToItWaitsNoLongerThanItsDeadline) {
  const Tensor tensor = Filled(0);
  Start([&] { Recv(1, 0, tensor, 1).IgnoreError(); });
  const absl::Status sent = Send(0, 1, Filled(2), 1, absl::Milliseconds(300));
  EXPECT_EQ(KindOf(sent), ErrorKind::kTimeout);
  EXPECT_THAT(sent.message(), AllOf(HasSubstr("rank 1 ("), HasSubstr("after 300ms")));
  Release();  // The receive still uses the tensor.
}

TEST_F(HeldReceiverTest, WhatItStillReadsIsNotOverwrittenOnceTheGroupHasFailed) {
  const Tensor tensor = Filled(0);
  Start([&] { Recv(1, 0, tensor, 1).IgnoreError(); });
  Start([&] { Send(0, 1, Filled(2), 1).IgnoreError(); });
  AwaitMatched(0, 1, 2);
  AwaitWritten();
  ranks_.group(2).failure_cell().Fail(BackendError("no more")).IgnoreError();
  Release();
  EXPECT_EQ(received_, absl::OkStatus());
  EXPECT_EQ(Wrong(held_, 1), 0);
}

}  // namespace
}  // namespace syncline::shm
