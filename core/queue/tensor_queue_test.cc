#include "syncline/tensor_queue.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/queue/queue_layout.h"
#include "core/tensor/segment.h"
#include "core/testing/children.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(20);
constexpr size_t kPage = 4096;

std::shared_ptr<TensorQueue> NewQueue(size_t capacity, int64_t max_messages = 0) {
  return TensorQueue::Create({capacity, max_messages}).value();
}

// `count` numbers from `first` on.
std::vector<int32_t> Numbers(int32_t first, size_t count) {
  std::vector<int32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

absl::Status PutNumbers(TensorQueue& queue, int32_t first, size_t count,
                        absl::Duration timeout = kLong) {
  std::vector<int32_t> numbers = Numbers(first, count);
  return queue.Put({Tensor::Of(numbers)}, "", timeout);
}

std::vector<int32_t> NumbersOf(const TensorQueue::Message& message) {
  const int32_t* const data = message.tensors.at(0).data_as<int32_t>();
  return {data, data + message.tensors[0].numel()};
}

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST(TensorQueueTest, GivesMessagesInTheOrderInWhichTheyWerePut) {
  const auto queue = NewQueue(1 << 20);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(PutNumbers(*queue, i, i).ok());
  EXPECT_EQ(queue->stats().messages, 10);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(NumbersOf(queue->Get(kLong).value()), Numbers(i, i));
  EXPECT_EQ(queue->stats().messages, 0);
  EXPECT_EQ(queue->stats().bytes, 0u);
}

TEST(TensorQueueTest, KeepsTypesShapesAndTheNote) {
  const auto queue = NewQueue(1 << 20);
  std::vector<Tensor> tensors;
  for (const DType dtype : AllDTypes()) {
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
             {}, {0}, {1}, {7}, {2, 3}, {3, 0, 2}, {1, 2, 3, 4, 5, 6}}) {
      Tensor tensor = Tensor::Zeros(dtype, shape);
      if (tensor.numel() > 0) std::memset(tensor.data(), 1 + tensors.size() % 100, tensor.nbytes());
      tensors.push_back(std::move(tensor));
    }
  }
  const std::string note("a\0b", 3);
  ASSERT_TRUE(queue->Put(tensors, note, kLong).ok());
  const TensorQueue::Message message = queue->Get(kLong).value();
  EXPECT_EQ(message.note, note);
  ASSERT_EQ(message.tensors.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(message.tensors[i].ToString(), tensors[i].ToString());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(message.tensors[i].data()) % 64, 0u);
    if (tensors[i].numel() == 0) continue;
    EXPECT_EQ(std::memcmp(message.tensors[i].data(), tensors[i].data(), tensors[i].nbytes()), 0);
  }
}

TEST(TensorQueueTest, AMessageMayBeANoteAlone) {
  const auto queue = NewQueue(kPage);
  for (const size_t size : {size_t{0}, size_t{1}, kPage - 16}) {
    ASSERT_TRUE(queue->Put({}, std::string(size, 'x'), kLong).ok());
    const TensorQueue::Message message = queue->Get(kLong).value();
    EXPECT_EQ(message.note, std::string(size, 'x'));
    EXPECT_TRUE(message.tensors.empty());
  }
}

TEST(TensorQueueTest, MessagesWrapAroundTheEndOfTheRing) {
  const auto queue = NewQueue(kPage);
  ASSERT_TRUE(PutNumbers(*queue, 0, 100).ok());
  // One stays in the queue always, so that the ring does not begin again.
  for (int i = 1; i < 1000; ++i) {
    const size_t count = i % 3 == 0 ? 100 : 13 * i % 500;
    ASSERT_TRUE(PutNumbers(*queue, i, count).ok());
    ASSERT_TRUE(queue->Get(kLong).ok());
    ASSERT_TRUE(PutNumbers(*queue, -i, 100).ok());
    EXPECT_EQ(NumbersOf(queue->Get(kLong).value()), Numbers(i, count));
  }
}

TEST(TensorQueueTest, HoldsAsManyBytesAsItsCapacity) {
  const auto queue = NewQueue(4 * kPage);
  EXPECT_EQ(queue->capacity(), 4 * kPage);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(queue->TryPut({}, std::string(kPage - 16, 'x')).value());
  EXPECT_EQ(queue->stats().bytes, queue->capacity());
  EXPECT_FALSE(queue->TryPut({}, "").value());
  ASSERT_TRUE(queue->TryGet().value().has_value());
  EXPECT_TRUE(queue->TryPut({}, "").value());
  EXPECT_FALSE(queue->TryPut({}, std::string(kPage - 16, 'x')).value());
}

TEST(TensorQueueTest, HoldsAsManyMessagesAsItMay) {
  for (const int64_t most : {1, 2, 3, 100}) {
    const auto queue = NewQueue(1 << 20, most);
    EXPECT_EQ(queue->max_messages(), most);
    for (int round = 0; round < 5; ++round) {
      for (int64_t i = 0; i < most; ++i) ASSERT_TRUE(queue->TryPut({}, "").value());
      EXPECT_FALSE(queue->TryPut({}, "").value());
      for (int64_t i = 0; i < most; ++i) ASSERT_TRUE(queue->TryGet().value().has_value());
      EXPECT_FALSE(queue->TryGet().value().has_value());
    }
  }
}

TEST(TensorQueueTest, AMessageLargerThanTheCapacityIsAnErrorThatNamesBoth) {
  const auto queue = NewQueue(kPage);
  const absl::Status status = PutNumbers(*queue, 0, 2000);
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
  EXPECT_THAT(Text(status), HasSubstr("8064 bytes"));
  EXPECT_THAT(Text(status), HasSubstr("4096 bytes"));
  EXPECT_EQ(queue->stats().messages, 0);
}

TEST(TensorQueueTest, StridedTensorsAndImpossibleOptionsAreErrors) {
  const auto queue = NewQueue(kPage);
  std::vector<int32_t> numbers(10);
  const Tensor strided(numbers.data(), DType::kInt32, {5}, {2});
  EXPECT_EQ(KindOf(queue->Put({strided}, "", kLong)), ErrorKind::kArgument);
  const Tensor remote(numbers.data(), DType::kInt32, {5}, {}, Device{DeviceType::kCuda, 0});
  EXPECT_EQ(KindOf(queue->Put({remote}, "", kLong)), ErrorKind::kUnsupported);
  EXPECT_EQ(KindOf(TensorQueue::Create({0, 0}).status()), ErrorKind::kArgument);
  EXPECT_EQ(KindOf(TensorQueue::Create({1, -1}).status()), ErrorKind::kArgument);
  const absl::Status none = TensorQueue::Create({size_t{1} << 45, 0}).status();
  EXPECT_EQ(KindOf(none), ErrorKind::kBackend);
  EXPECT_THAT(Text(none), HasSubstr("KiB"));
}

TEST(TensorQueueTest, AWaitEndsAtItsDeadline) {
  const auto queue = NewQueue(kPage);
  const absl::Time begin = absl::Now();
  const absl::Status get = queue->Get(kShort).status();
  EXPECT_EQ(KindOf(get), ErrorKind::kTimeout);
  EXPECT_THAT(Text(get), HasSubstr("no message after 20ms"));
  ASSERT_TRUE(PutNumbers(*queue, 0, 500).ok());
  const absl::Status put = PutNumbers(*queue, 0, 500, kShort);
  EXPECT_EQ(KindOf(put), ErrorKind::kTimeout);
  EXPECT_THAT(Text(put), HasSubstr("2112 of 4096 bytes are taken, 1 of 64 messages wait"));
  EXPECT_GE(absl::Now() - begin, 2 * kShort);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  EXPECT_EQ(KindOf(queue->GetInto({}, absl::ZeroDuration()).status()), ErrorKind::kArgument);
  EXPECT_TRUE(queue->Get(absl::ZeroDuration()).ok());
  EXPECT_EQ(KindOf(queue->Get(absl::ZeroDuration()).status()), ErrorKind::kTimeout);
  // A put that has given up keeps no turn.
  EXPECT_TRUE(queue->TryPut({}, "").value());
}

TEST(TensorQueueTest, AWaitEndsWhenItsThreadIsInterrupted) {
  const auto queue = NewQueue(kPage);
  const auto interrupt = [] { return InterruptedError("interrupted"); };
  const InterruptScope scope(interrupt);
  EXPECT_TRUE(IsInterrupted(queue->Get(kLong).status()));
  ASSERT_TRUE(PutNumbers(*queue, 0, 500).ok());
  EXPECT_TRUE(IsInterrupted(PutNumbers(*queue, 0, 500)));
}

TEST(TensorQueueTest, AWaitEndsWhenWhatItWaitsForComes) {
  const auto queue = NewQueue(kPage);
  std::thread consumer([&] {
    for (int i = 0; i < 100; ++i) EXPECT_EQ(NumbersOf(queue->Get(kLong).value())[0], i);
  });
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(PutNumbers(*queue, i, 900).ok());  // One at a time.
  consumer.join();
}

TEST(TensorQueueTest, AConsumerGetsWhatAClosedQueueHoldsThenTheEnd) {
  const auto queue = NewQueue(kPage);
  ASSERT_TRUE(PutNumbers(*queue, 5, 3).ok());
  EXPECT_FALSE(queue->is_closed());
  ASSERT_TRUE(queue->Close().ok());
  ASSERT_TRUE(queue->Close().ok());
  EXPECT_TRUE(queue->is_closed());
  const absl::Status put = PutNumbers(*queue, 0, 1);
  EXPECT_EQ(KindOf(put), ErrorKind::kBackend);
  EXPECT_THAT(Text(put), HasSubstr("closed"));
  EXPECT_EQ(NumbersOf(queue->Get(kLong).value()), Numbers(5, 3));
  EXPECT_TRUE(IsEndOfQueue(queue->Get(kLong).status()));
  EXPECT_TRUE(IsEndOfQueue(queue->TryGet().status()));
  EXPECT_TRUE(IsEndOfQueue(queue->GetInto({}, kLong).status()));
}

TEST(TensorQueueTest, AClosedQueueWakesAllThatWait) {
  const auto empty = NewQueue(kPage), full = NewQueue(kPage);
  ASSERT_TRUE(PutNumbers(*full, 0, 900).ok());
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] { EXPECT_TRUE(IsEndOfQueue(empty->Get(kLong).status())); });
    threads.emplace_back(
        [&] { EXPECT_EQ(KindOf(PutNumbers(*full, 0, 900)), ErrorKind::kBackend); });
  }
  ASSERT_TRUE(empty->Close().ok());
  ASSERT_TRUE(full->Close().ok());
  for (std::thread& thread : threads) thread.join();
}

TEST(TensorQueueTest, ALargeMessageIsNotOvertakenByThoseThatWouldFit) {
  const auto queue = NewQueue(4 * kPage);
  ASSERT_TRUE(PutNumbers(*queue, 0, 1000).ok());
  ASSERT_TRUE(PutNumbers(*queue, 1, 1000).ok());
  std::thread large([&] { EXPECT_TRUE(PutNumbers(*queue, 2, 4080).ok()); });
  // It needs the whole ring. It has its turn once nobody else can put.
  while (queue->TryPut({}, "").value()) ASSERT_TRUE(queue->Get(kLong).ok());
  std::thread small([&] { EXPECT_TRUE(PutNumbers(*queue, 3, 1).ok()); });
  std::vector<int32_t> firsts;
  while (firsts.empty() || firsts.back() != 3) {
    const TensorQueue::Message message = queue->Get(kLong).value();
    if (!message.tensors.empty()) firsts.push_back(NumbersOf(message)[0]);
  }
  EXPECT_EQ(firsts[firsts.size() - 2], 2);
  large.join();
  small.join();
}

TEST(TensorQueueTest, ReceivesIntoTensorsThatFit) {
  const auto queue = NewQueue(kPage);
  std::vector<int32_t> numbers = Numbers(3, 6), into(6), other(5);
  const Tensor tensor = Tensor::Of(numbers).Reshape({2, 3});
  ASSERT_TRUE(queue->Put({tensor}, "note", kLong).ok());
  for (const Tensor& wrong : {Tensor::Of(other), Tensor::Of(into)}) {
    const absl::Status status = queue->GetInto({wrong}, kLong).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
    EXPECT_THAT(Text(status), HasSubstr("(int32[2, 3]), does not fit"));
    EXPECT_THAT(Text(status), HasSubstr("stays"));
  }
  EXPECT_EQ(queue->GetInto({Tensor::Of(into).Reshape({2, 3})}, kLong).value(), "note");
  EXPECT_EQ(into, numbers);
  const Tensor fixed(into.data(), DType::kInt32, {6}, {}, {}, nullptr, Access::kReadOnly);
  EXPECT_EQ(KindOf(queue->GetInto({fixed}, kLong).status()), ErrorKind::kType);
}

TEST(TensorQueueTest, IsOpenedByItsDescriptor) {
  const auto queue = NewQueue(kPage);
  const auto other = TensorQueue::Open(fcntl(queue->descriptor(), F_DUPFD_CLOEXEC, 0)).value();
  EXPECT_EQ(other->capacity(), kPage);
  ASSERT_TRUE(PutNumbers(*queue, 1, 2).ok());
  EXPECT_EQ(NumbersOf(other->Get(kLong).value()), Numbers(1, 2));
  ASSERT_TRUE(other->Close().ok());
  EXPECT_TRUE(queue->is_closed());
}

TEST(TensorQueueTest, WhatIsNoQueueIsNotOpened) {
  const auto refuses = [](int descriptor) {
    const absl::Status status = TensorQueue::Open(descriptor).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kBackend);
    EXPECT_THAT(Text(status), HasSubstr("TensorQueue"));
  };
  refuses(-1);
  refuses(open("/dev/null", O_RDWR | O_CLOEXEC));
  refuses(memfd_create("test", MFD_CLOEXEC));
  const tensor::Segment zeros = tensor::Segment::Create(1 << 20).value();
  refuses(dup(zeros.descriptor()));
  const tensor::Segment small = tensor::Segment::Create(16).value();
  refuses(dup(small.descriptor()));
}

TEST(TensorQueueTest, AProcessOpensTheQueueOfAnotherByItsHandle) {
  int handles[2];
  ASSERT_EQ(pipe(handles), 0);
  const pid_t child = Fork([&] {
    const auto queue = NewQueue(1 << 20);
    const std::string handle = queue->handle().value();
    return PutNumbers(*queue, 3, 5).ok() &&
           write(handles[1], handle.data(), handle.size()) == static_cast<ssize_t>(handle.size()) &&
           NumbersOf(queue->Get(kLong).value()) == Numbers(3, 5) &&
           NumbersOf(queue->Get(kLong).value()) == Numbers(4, 6);
  });
  close(handles[1]);
  char text[1024];
  const ssize_t size = read(handles[0], text, sizeof(text));
  ASSERT_GT(size, 0);
  const std::string handle(text, static_cast<size_t>(size));
  {
    const auto queue = TensorQueue::Open(handle);
    ASSERT_TRUE(queue.ok()) << queue.status();
    ASSERT_TRUE(PutNumbers(**queue, 4, 6).ok());
    EXPECT_TRUE(ExitsWell(child));
    EXPECT_EQ((*queue)->stats().messages, 0);
  }
  const absl::Status ended = TensorQueue::Open(handle).status();
  EXPECT_EQ(KindOf(ended), ErrorKind::kBackend);
  EXPECT_THAT(Text(ended),
              HasSubstr(absl::StrCat("process ", child, ", which made the handle, has ended")));
  for (const char* const wrong : {"", "syncline-queue-1", "syncline-tensor-1,1,2", "x,y"}) {
    const absl::Status status = TensorQueue::Open(absl::string_view(wrong)).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
    EXPECT_THAT(Text(status), HasSubstr("is not the handle of a queue"));
  }
  close(handles[0]);
}

// A queue's segment, in which `change` has changed the header.
template <typename Change>
int Damaged(const Change& change) {
  const tensor::Segment segment = queue::MakeQueueSegment({kPage, 0}).value();
  change(*reinterpret_cast<queue::QueueHeader*>(segment.data()));
  return dup(segment.descriptor());
}

TEST(TensorQueueTest, ADamagedQueueIsNotOpened) {
  const auto refuses = [](auto change, absl::string_view words) {
    EXPECT_THAT(Text(TensorQueue::Open(Damaged(change)).status()), HasSubstr(std::string(words)));
  };
  using Header = queue::QueueHeader;
  refuses([](Header& header) { header.magic ^= 1; }, "is not that of");
  refuses([](Header& header) { header.capacity *= 2; }, "is not that of");
  refuses([](Header& header) { header.capacity = 1; }, "is not that of");
  refuses([](Header& header) { header.slot_count = 0; }, "is not that of");
  refuses([](Header& header) { header.slot_count = ~uint64_t{0}; }, "is not that of");
  refuses([](Header& header) { header.max_messages = 0; }, "is not that of");
  refuses([](Header& header) { header.max_messages = 1 << 30; }, "is not that of");
  refuses([](Header& header) { header.pid_namespace ^= 1; }, "another pid namespace");
  EXPECT_TRUE(TensorQueue::Open(Damaged([](Header&) {})).ok());
}

TEST(TensorQueueTest, ADamagedMessageIsAnError) {
  const auto queue = NewQueue(kPage);
  const tensor::Segment segment = tensor::Segment::Map(dup(queue->descriptor()), 3 * kPage).value();
  const queue::QueueLayout layout(segment.data());
  // The number of tensors; the sizes of the head and of the note; the type and rank; the length.
  for (const size_t offset : {0, 4, 8, 16, 20, 24}) {
    ASSERT_TRUE(PutNumbers(*queue, 0, 3).ok());
    const auto ticket = layout.header().next.load();
    const uint32_t damage = 0x7fffffff;
    layout.CopyIn(layout.slot(ticket).begin + offset, &damage, sizeof(damage));
    const absl::Status status = queue->Get(kLong).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kBackend) << offset;
    EXPECT_THAT(Text(status), HasSubstr("damaged"));
  }
  ASSERT_TRUE(PutNumbers(*queue, 0, 3).ok());
  EXPECT_TRUE(queue->Get(kLong).ok());
}

TEST(TensorQueueTest, LeavesNoDescriptor) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = descriptors();
  {
    const auto queue = NewQueue(kPage);
    const auto other = TensorQueue::Open(dup(queue->descriptor())).value();
    EXPECT_EQ(descriptors(), before + 2);
    EXPECT_FALSE(TensorQueue::Open(Damaged([](queue::QueueHeader& h) { h.magic = 0; })).ok());
  }
  EXPECT_EQ(descriptors(), before);
}

TEST(TensorQueueTest, ChildrenOfForkPutAndGet) {
  const auto queue = NewQueue(kPage);
  ASSERT_TRUE(PutNumbers(*queue, 1, 1).ok());  // The parent is known by its thread's id.
  ASSERT_TRUE(queue->Get(kLong).ok());
  const pid_t consumer = Fork([&] {
    int64_t sum = 0;
    while (true) {
      const auto message = queue->Get(kLong);
      if (IsEndOfQueue(message.status())) return sum == 3 * 499500;
      if (!message.ok()) return false;
      sum += NumbersOf(*message)[0];
    }
  });
  std::vector<pid_t> producers;
  for (int p = 0; p < 3; ++p) {
    producers.push_back(Fork([&] {
      for (int i = 0; i < 1000; ++i) {
        if (!PutNumbers(*queue, i, 1 + i % 300).ok()) return false;
      }
      return true;
    }));
  }
  for (const pid_t producer : producers) EXPECT_TRUE(ExitsWell(producer));
  ASSERT_TRUE(queue->Close().ok());
  EXPECT_TRUE(ExitsWell(consumer));
}

TEST(TensorQueueTest, ThreadsGetEachMessageOnceAndInTheOrderOfItsProducer) {
  constexpr int kProducers = 4, kConsumers = 3, kMessages = 2000;
  const auto queue = NewQueue(2 * kPage);
  std::vector<std::thread> producers, consumers;
  std::vector<std::vector<std::pair<int, int>>> got(kConsumers);
  for (int c = 0; c < kConsumers; ++c) {
    consumers.emplace_back([&, c] {
      while (true) {
        const auto message = queue->Get(kLong);
        if (IsEndOfQueue(message.status())) return;
        const std::vector<int32_t> numbers = NumbersOf(message.value());
        EXPECT_EQ(numbers, Numbers(numbers[0], numbers.size()));
        got[c].emplace_back(std::stoi(message->note), numbers[0]);
      }
    });
  }
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (int i = 0; i < kMessages; ++i) {
        std::vector<int32_t> numbers = Numbers(i, 1 + (i * 7 + p) % 900);
        ASSERT_TRUE(queue->Put({Tensor::Of(numbers)}, absl::StrCat(p), kLong).ok());
      }
    });
  }
  for (std::thread& thread : producers) thread.join();
  ASSERT_TRUE(queue->Close().ok());
  for (std::thread& thread : consumers) thread.join();
  std::vector<int> count(kProducers * kMessages);
  for (const auto& messages : got) {
    std::vector<int> last(kProducers, -1);
    for (const auto& [producer, number] : messages) {
      EXPECT_GT(number, last[producer]);
      last[producer] = number;
      ++count[producer * kMessages + number];
    }
  }
  EXPECT_EQ(std::count(count.begin(), count.end(), 1), kProducers * kMessages);
}

TEST(TensorQueueTest, AnIdleConsumerThatIsStoppedHoldsUpNobody) {
  const auto queue = NewQueue(kPage);
  const pid_t idle = Fork([&] { return queue->Get(kLong).ok(); });
  kill(idle, SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(idle, &status, WUNTRACED), idle);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(PutNumbers(*queue, i, 1).ok());
    EXPECT_EQ(NumbersOf(queue->Get(kLong).value()), Numbers(i, 1));
  }
  kill(idle, SIGKILL);
  ASSERT_EQ(waitpid(idle, &status, 0), idle);
}

}  // namespace
}  // namespace syncline
