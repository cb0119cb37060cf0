// The devices of this process, real or simulated: memory, streams, events, kernels of many threads.
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/device/device_runtime.h"
#include "core/device/kernels.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

constexpr Device kCuda0 = {DeviceType::kCuda, 0};

Deadline Soon() { return Deadline(absl::Seconds(100)); }

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto runtime = DeviceRuntime::Get();
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *runtime;
    ASSERT_GE(runtime_->device_count(), 1);
  }

  DeviceRuntime& runtime() { return *runtime_; }

  std::shared_ptr<const Stream> MakeStream() {
    auto stream = runtime_->MakeStream(kCuda0);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *stream;
  }

  std::shared_ptr<void> Allocate(size_t bytes) {
    auto memory = runtime_->Allocate(kCuda0, bytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *memory;
  }

  std::string Contents(const void* address, size_t bytes, const Stream& stream) {
    std::string contents(bytes, 0);
    EXPECT_TRUE(runtime_->Copy(contents.data(), address, bytes, stream).ok());
    EXPECT_TRUE(runtime_->Synchronize(stream, Soon()).ok());
    return contents;
  }

 private:
  DeviceRuntime* runtime_ = nullptr;
};

TEST_F(DeviceTest, KnowsWhereMemoryIs) {
  const auto on_device = Allocate(1000);
  const auto pinned = runtime().AllocatePinned(1000);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  const int on_stack = 0;
  EXPECT_EQ(*runtime().DeviceOf(on_device.get()), kCuda0);
  EXPECT_EQ(*runtime().DeviceOf(static_cast<char*>(on_device.get()) + 999), kCuda0);
  EXPECT_EQ(*runtime().DeviceOf(pinned->get()), Device{});
  EXPECT_EQ(*runtime().DeviceOf(&on_stack), Device{});
}

TEST_F(DeviceTest, BytesComeBackAsTheyWere) {
  const auto stream = MakeStream();
  for (const size_t bytes : {1, 255, 256, 1000003}) {
    std::string contents(bytes, 0);
    for (size_t i = 0; i < bytes; ++i) contents[i] = static_cast<char>(i * 7);
    const auto first = Allocate(bytes), second = Allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first.get()) % 256, 0u);
    ASSERT_TRUE(runtime().Copy(first.get(), contents.data(), bytes, *stream).ok());
    ASSERT_TRUE(runtime().Copy(second.get(), first.get(), bytes, *stream).ok());
    EXPECT_EQ(Contents(second.get(), bytes, *stream), contents);
  }
}

TEST_F(DeviceTest, AStreamWaitsForAnEventOfAnother) {
  constexpr size_t kBytes = 64 << 20;
  const auto first = MakeStream();
  const auto second = *runtime().MakeStream(kCuda0, DeviceRuntime::Priority::kHigh);
  const auto from = Allocate(kBytes), to = Allocate(kBytes);
  for (unsigned char round = 1; round <= 10; ++round) {
    // Copies that take a while: the second stream would read too early.
    for (int i = 0; i < 5; ++i) {
      ASSERT_TRUE(runtime().Fill(from.get(), static_cast<unsigned char>(0), kBytes, *first).ok());
    }
    ASSERT_TRUE(runtime().Fill(from.get(), round, kBytes, *first).ok());
    const auto filled = runtime().Record(*first);
    ASSERT_TRUE(filled.ok()) << filled.status();
    ASSERT_TRUE((*filled)->EnqueueWait(*second).ok());
    ASSERT_TRUE(runtime().Copy(to.get(), from.get(), kBytes, *second).ok());
    const auto copied = runtime().Record(*second);
    ASSERT_TRUE(copied.ok()) << copied.status();
    ASSERT_TRUE((*copied)->EnqueueWait(*first).ok());
    const char* const end = static_cast<const char*>(to.get()) + kBytes - 10;
    EXPECT_EQ(Contents(end, 10, *first), std::string(10, static_cast<char>(round)));
    EXPECT_TRUE(*(*filled)->IsDone());
    EXPECT_TRUE(*(*copied)->IsDone());
  }
}

TEST_F(DeviceTest, NothingIsCapturedByItself) {
  const auto stream = MakeStream();
  EXPECT_FALSE(*runtime().IsCapturing(*stream));
  EXPECT_FALSE(*runtime().IsCapturing({kCuda0, nullptr}));
}

TEST_F(DeviceTest, ADeviceThatIsNotThereIsAnArgumentError) {
  const Device missing = {DeviceType::kCuda, runtime().device_count()};
  EXPECT_EQ(KindOf(runtime().Allocate(missing, 1).status()), ErrorKind::kArgument);
  EXPECT_EQ(KindOf(runtime().KernelsOf(missing).status()), ErrorKind::kArgument);
}

TEST_F(DeviceTest, ThreadsUseTheKernelsAtOnceEachOnItsStream) {
  constexpr int kThreads = 4, kRounds = 20;
  constexpr size_t kCount = 10001;
  const auto kernels = runtime().KernelsOf(kCuda0);
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      // One thread is on the default stream, which waits for none of the others.
      const auto own = MakeStream();
      const Stream stream = thread == 0 ? Stream{kCuda0, nullptr} : *own;
      const auto sum = Allocate(kCount), one = Allocate(kCount);
      ASSERT_TRUE(runtime().Fill(sum.get(), 0, kCount, stream).ok());
      ASSERT_TRUE(
          runtime().Fill(one.get(), static_cast<unsigned char>(thread + 1), kCount, stream).ok());
      for (int round = 0; round < kRounds; ++round) {
        const void* const inputs[] = {sum.get(), one.get()};
        const absl::Status status =
            (*kernels)->Reduce(DType::kUInt8, ReduceOp::kSum, sum.get(), inputs, kCount, stream);
        ASSERT_TRUE(status.ok()) << status;
      }
      EXPECT_EQ(Contents(sum.get(), kCount, stream),
                std::string(kCount, static_cast<char>(kRounds * (thread + 1))));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace syncline::device
