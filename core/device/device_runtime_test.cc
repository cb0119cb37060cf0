#include "core/device/device_runtime.h"

#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "core/base/env.h"
#include "core/device/cuda_types.h"
#include "core/device/task_thread.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gtest/gtest.h"
#include "syncline/device_memory.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

constexpr Device kCuda0 = {DeviceType::kCuda, 0};
constexpr Device kCuda1 = {DeviceType::kCuda, 1};

// Before main(): the library looks once. Tests that want another number are processes of their own.
const bool has_devices = setenv("FAKE_CUDA_DEVICES", "2", /*overwrite=*/0) == 0;

Deadline Soon() { return Deadline(absl::Seconds(60)); }

DeviceRuntime& Runtime() { return **DeviceRuntime::Get(); }

// What the process has, once what it has let go of is given back.
fake_cuda_counts Counts() {
  EXPECT_TRUE(TaskThread::Releases().AwaitIdle(Soon()));
  return FakeCuda::Get().Counts();
}

std::vector<char> Contents(const void* address, size_t bytes, const Stream& stream) {
  std::vector<char> contents(bytes);
  EXPECT_TRUE(Runtime().Copy(contents.data(), address, bytes, stream).ok());
  EXPECT_TRUE(Runtime().Synchronize(stream, Soon()).ok());
  return contents;
}

// Makes the context of `device` current for the duration of a test, as a program may.
class Current {
 public:
  explicit Current(int device) {
    const FakeCuda& fake = FakeCuda::Get();
    fake.Driver<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context_, device);
    fake.Driver<CUresult(CUcontext)>("cuCtxPushCurrent_v2")(context_);
  }
  ~Current() { FakeCuda::Get().Driver<CUresult(CUcontext*)>("cuCtxPopCurrent_v2")(&context_); }

  bool IsCurrent() const {
    CUcontext current = nullptr;
    FakeCuda::Get().Driver<CUresult(CUcontext*)>("cuCtxGetCurrent")(&current);
    return current == context_ && FakeCuda::Get().context_depth() == 1;
  }

 private:
  CUcontext context_ = nullptr;
};

// A graph captured from a stream. The mode is that of torch.
class Capturing {
 public:
  explicit Capturing(const Stream& stream) : stream_(static_cast<CUstream>(stream.handle)) {
    EXPECT_EQ(FakeCuda::Get().Driver<CUresult(CUstream, CUstreamCaptureMode)>(
                  "cuStreamBeginCapture_v2")(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_SUCCESS);
  }

  // CUDA_SUCCESS unless something has made the capture invalid.
  CUresult End() {
    const FakeCuda& fake = FakeCuda::Get();
    CUgraph graph = nullptr;
    const CUresult result =
        fake.Driver<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture")(stream_, &graph);
    if (result != CUDA_SUCCESS) return result;
    EXPECT_EQ(fake.Driver<CUresult(CUgraphExec*, CUgraph, unsigned long long)>(  // NOLINT
                  "cuGraphInstantiateWithFlags")(&exec_, graph, 0),
              CUDA_SUCCESS);
    return fake.Driver<CUresult(CUgraph)>("cuGraphDestroy")(graph);
  }

  void Launch() {
    EXPECT_EQ(
        FakeCuda::Get().Driver<CUresult(CUgraphExec, CUstream)>("cuGraphLaunch")(exec_, stream_),
        CUDA_SUCCESS);
  }

  ~Capturing() {
    if (exec_ == nullptr) return;
    FakeCuda::Get().Driver<CUresult(CUgraphExec)>("cuGraphExecDestroy")(exec_);
  }

 private:
  const CUstream stream_;
  CUgraphExec exec_ = nullptr;
};

TEST(DeviceRuntimeTest, HasTheDevicesAndTheVersionOfTheDriver) {
  ASSERT_TRUE(DeviceRuntime::Get().ok()) << DeviceRuntime::Get().status();
  EXPECT_TRUE(DeviceRuntime::IsLoaded());
  EXPECT_EQ(Runtime().device_count(), 2);
  EXPECT_EQ(Runtime().driver_version(), 13000);
}

TEST(DeviceRuntimeTest, WorkOfAStreamWaitsForAnEventOfAnotherDevice) {
  const auto first = *Runtime().MakeStream(kCuda0);
  const auto second = *Runtime().MakeStream(kCuda1);
  const auto memory = *Runtime().Allocate(kCuda0, 1000);
  const auto copy = *Runtime().Allocate(kCuda1, 1000);
  {
    const HeldStreams held(0);
    ASSERT_TRUE(Runtime().Fill(memory.get(), 7, 1000, *first).ok());
    const auto filled = *Runtime().Record(*first);
    EXPECT_EQ(filled->device(), kCuda0);
    EXPECT_FALSE(*filled->IsDone());
    ASSERT_TRUE(filled->EnqueueWait(*second).ok());
    ASSERT_TRUE(Runtime().Copy(copy.get(), memory.get(), 1000, *second).ok());
    const absl::Status status = Runtime().Synchronize(*second, Deadline(absl::Milliseconds(1)));
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
  }
  EXPECT_EQ(Contents(copy.get(), 1000, *second), std::vector<char>(1000, 7));
}

TEST(DeviceRuntimeTest, AnEventMayBeAwaitedAgainAndAfterItIsDone) {
  const auto stream = *Runtime().MakeStream(kCuda0);
  const auto event = *Runtime().Record(*stream);
  ASSERT_TRUE(Runtime().Synchronize(*stream, Soon()).ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(*event->IsDone());
    EXPECT_TRUE(event->EnqueueWait(*stream).ok());
  }
}

TEST(DeviceRuntimeTest, EventsAreUsedAgain) {
  const auto stream = *Runtime().MakeStream(kCuda0);
  {
    const auto first = *Runtime().Record(*stream);
  }
  const int64_t events = FakeCuda::Get().Counts().events;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Runtime().Record(*stream).ok());
  EXPECT_EQ(FakeCuda::Get().Counts().events, events);
}

TEST(DeviceRuntimeTest, AnEventThatIsGivenBackDoesNotEndTheWaitForIt) {
  const auto first = *Runtime().MakeStream(kCuda0);
  const auto second = *Runtime().MakeStream(kCuda1);
  const auto memory = *Runtime().Allocate(kCuda0, 8);
  {
    const HeldStreams held(0);
    ASSERT_TRUE(Runtime().Fill(memory.get(), 3, 8, *first).ok());
    ASSERT_TRUE((*Runtime().Record(*first))->EnqueueWait(*second).ok());
    // The same event of the driver, at another point.
    const auto other = *Runtime().MakeStream(kCuda0);
    ASSERT_TRUE(Runtime().Record(*other).ok());
    EXPECT_FALSE(*(*Runtime().Record(*second))->IsDone());
  }
  EXPECT_EQ(Contents(memory.get(), 8, *second), std::vector<char>(8, 3));
}

TEST(DeviceRuntimeTest, NullIsTheDefaultStreamOfTheDevice) {
  const auto memory = *Runtime().Allocate(kCuda1, 100);
  const Stream standard = {kCuda1, nullptr};
  {
    const HeldStreams held(1);
    ASSERT_TRUE(Runtime().Fill(memory.get(), 1, 100, standard).ok());
    // The default stream of another device does not wait, nor do streams that are made here.
    EXPECT_TRUE(Runtime().Synchronize({kCuda0, nullptr}, Soon()).ok());
    EXPECT_FALSE(*(*Runtime().Record(standard))->IsDone());
  }
  EXPECT_EQ(Contents(memory.get(), 100, standard), std::vector<char>(100, 1));
}

TEST(DeviceRuntimeTest, StreamsDoNotWaitForTheDefaultStreamNorItForThem) {
  const FakeCuda& fake = FakeCuda::Get();
  const auto stream = *Runtime().MakeStream(kCuda0);
  // The default stream is blocked by a function of the host.
  struct Gate {
    std::mutex mutex;
    std::condition_variable opened;
    bool is_open = false;
  } blocked;
  const auto wait = [](void* data) {
    auto* const gate = static_cast<Gate*>(data);
    std::unique_lock<std::mutex> lock(gate->mutex);
    gate->opened.wait(lock, [gate] { return gate->is_open; });
  };
  {
    const DeviceRuntime::ContextScope scope(Runtime(), kCuda0);
    ASSERT_TRUE(scope.status().ok());
    ASSERT_EQ(fake.Driver<CUresult(CUstream, CUhostFn, void*)>("cuLaunchHostFunc")(nullptr, wait,
                                                                                   &blocked),
              CUDA_SUCCESS);
  }
  EXPECT_TRUE(Runtime().Synchronize(*stream, Soon()).ok());
  {
    const std::lock_guard<std::mutex> lock(blocked.mutex);
    blocked.is_open = true;
  }
  blocked.opened.notify_all();
  EXPECT_TRUE(Runtime().Synchronize({kCuda0, nullptr}, Soon()).ok());
}

TEST(DeviceRuntimeTest, AStreamMayHavePriority) {
  const auto priority_of = [](const Stream& stream) {
    int priority = 1;
    EXPECT_EQ(FakeCuda::Get().Driver<CUresult(CUstream, int*)>("cuStreamGetPriority")(
                  static_cast<CUstream>(stream.handle), &priority),
              CUDA_SUCCESS);
    return priority;
  };
  const auto high = *Runtime().MakeStream(kCuda0, DeviceRuntime::Priority::kHigh);
  const auto standard = *Runtime().MakeStream(kCuda0);
  EXPECT_LT(priority_of(*high), priority_of(*standard));
}

TEST(DeviceRuntimeTest, WorkOfADestroyedStreamGoesOn) {
  const auto memory = *Runtime().Allocate(kCuda0, 64);
  std::shared_ptr<Event> filled;
  const int64_t streams = Counts().streams;
  {
    const HeldStreams held(0);
    const auto stream = *Runtime().MakeStream(kCuda0);
    ASSERT_TRUE(Runtime().Fill(memory.get(), 9, 64, *stream).ok());
    filled = *Runtime().Record(*stream);
  }
  EXPECT_EQ(Counts().streams, streams);
  const auto other = *Runtime().MakeStream(kCuda0);
  ASSERT_TRUE(filled->EnqueueWait(*other).ok());
  EXPECT_EQ(Contents(memory.get(), 64, *other), std::vector<char>(64, 9));
}

TEST(DeviceRuntimeTest, KnowsWhoseMemoryAnAddressIsIn) {
  const auto first = *Runtime().Allocate(kCuda0, 100);
  const auto second = *Runtime().Allocate(kCuda1, 100);
  const auto pinned = *Runtime().AllocatePinned(100);
  const auto host = std::make_unique<char[]>(100);
  EXPECT_EQ(*Runtime().DeviceOf(first.get()), kCuda0);
  EXPECT_EQ(*Runtime().DeviceOf(static_cast<char*>(second.get()) + 99), kCuda1);
  EXPECT_EQ(*Runtime().DeviceOf(pinned.get()), Device{});
  EXPECT_EQ(*Runtime().DeviceOf(host.get()), Device{});
  EXPECT_EQ(*Runtime().DeviceOf(nullptr), Device{});
}

TEST(DeviceRuntimeTest, ManagedMemoryIsOfTheDevice) {
  const DeviceRuntime::ContextScope scope(Runtime(), kCuda1);
  CUdeviceptr address = 0;
  const FakeCuda& fake = FakeCuda::Get();
  ASSERT_EQ(fake.Driver<CUresult(CUdeviceptr*, size_t, unsigned)>("cuMemAllocManaged")(
                &address, 10, CU_MEM_ATTACH_GLOBAL),
            CUDA_SUCCESS);
  EXPECT_EQ(*Runtime().DeviceOf(reinterpret_cast<void*>(address)), kCuda1);
  fake.Driver<CUresult(CUdeviceptr)>("cuMemFree_v2")(address);
}

TEST(DeviceRuntimeTest, MemoryIsAlignedAndGivenBack) {
  const fake_cuda_counts before = Counts();
  {
    const auto memory = *Runtime().Allocate(kCuda0, 1);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 256, 0u);
    const auto shared = memory;
    const auto pinned = *Runtime().AllocatePinned(3);
    EXPECT_EQ(Counts().device_allocations, before.device_allocations + 1);
    EXPECT_EQ(Counts().pinned_allocations, before.pinned_allocations + 1);
  }
  EXPECT_EQ(Counts().device_allocations, before.device_allocations);
  EXPECT_EQ(Counts().pinned_allocations, before.pinned_allocations);
}

TEST(DeviceRuntimeTest, WhoLetsGoOfMemoryDoesNotWaitForTheDevice) {
  const WaitingFrees waiting;
  const fake_cuda_counts before = Counts();
  const auto stream = *Runtime().MakeStream(kCuda0);
  const auto used = *Runtime().Allocate(kCuda0, 10);
  auto memory = *Runtime().Allocate(kCuda0, 10);
  auto pinned = *Runtime().AllocatePinned(10);
  absl::Notification has_let_go;
  std::thread owner;
  bool is_soon;
  {
    const HeldStreams held;
    ASSERT_TRUE(Runtime().Fill(used.get(), 1, 10, *stream).ok());
    owner = std::thread([&] {
      memory.reset();
      pinned.reset();
      has_let_go.Notify();
    });
    is_soon = has_let_go.WaitForNotificationWithTimeout(absl::Seconds(20));
  }
  owner.join();
  EXPECT_TRUE(is_soon);
  EXPECT_EQ(Counts().device_allocations, before.device_allocations + 1);
  EXPECT_EQ(Counts().pinned_allocations, before.pinned_allocations);
}

TEST(DeviceRuntimeTest, AnAllocationWaitsForMemoryThatIsBeingGivenBack) {
  const WaitingFrees waiting;
  const FakeCuda& fake = FakeCuda::Get();
  const auto stream = *Runtime().MakeStream(kCuda0);
  const auto used = *Runtime().Allocate(kCuda0, 10);
  auto memory = *Runtime().Allocate(kCuda0, 10);
  absl::StatusOr<std::shared_ptr<void>> allocated;
  std::thread allocating;
  {
    const HeldStreams held;
    ASSERT_TRUE(Runtime().Fill(used.get(), 1, 10, *stream).ok());
    memory.reset();
    const int64_t calls = fake.calls("cuMemAlloc_v2");
    fake.fail_next("cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY);
    allocating = std::thread([&] { allocated = Runtime().Allocate(kCuda0, 20); });
    const Deadline deadline = Soon();
    while (fake.calls("cuMemAlloc_v2") == calls && !deadline.Expired()) std::this_thread::yield();
  }
  allocating.join();
  EXPECT_TRUE(allocated.ok()) << allocated.status();
}

TEST(DeviceRuntimeTest, NoBytesAreNoWork) {
  const auto stream = *Runtime().MakeStream(kCuda0);
  const auto memory = Runtime().Allocate(kCuda0, 0);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_TRUE(Runtime().AllocatePinned(0).ok());
  EXPECT_TRUE(Runtime().Fill(memory->get(), 1, 0, *stream).ok());
  EXPECT_TRUE(Runtime().Copy(memory->get(), memory->get(), 0, *stream).ok());
}

TEST(DeviceRuntimeTest, CopiesBetweenDevicesAndPinnedMemory) {
  const auto stream = *Runtime().MakeStream(kCuda0);
  const auto first = *Runtime().Allocate(kCuda0, 5000);
  const auto second = *Runtime().Allocate(kCuda1, 5000);
  const auto pinned = *Runtime().AllocatePinned(5000);
  for (int i = 0; i < 5000; ++i) static_cast<char*>(pinned.get())[i] = static_cast<char>(i);
  ASSERT_TRUE(Runtime().Copy(first.get(), pinned.get(), 5000, *stream).ok());
  ASSERT_TRUE(Runtime().Copy(second.get(), first.get(), 5000, *stream).ok());
  const std::vector<char> contents = Contents(second.get(), 5000, *stream);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(contents[i], static_cast<char>(i)) << i;
}

TEST(DeviceRuntimeTest, ADeviceThatIsNotThereIsAnArgumentError) {
  for (const Device& device :
       {Device{DeviceType::kCuda, 2}, Device{DeviceType::kCuda, -1}, Device{}}) {
    const Stream stream = {device, nullptr};
    for (const absl::Status& status :
         {Runtime().Allocate(device, 1).status(), Runtime().MakeStream(device).status(),
          Runtime().Record(stream).status(), Runtime().IsCapturing(stream).status(),
          Runtime().Copy(nullptr, nullptr, 0, stream), Runtime().Fill(nullptr, 0, 0, stream),
          Runtime().Synchronize(stream, Soon()), Runtime().KernelsOf(device).status(),
          DeviceRuntime::ContextScope(Runtime(), device).status(),
          (*Runtime().Record({kCuda0}))->EnqueueWait(stream)}) {
      EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), ToString(device))) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "cuda:0 to cuda:1")) << status;
    }
  }
  EXPECT_EQ(FakeCuda::Get().context_depth(), 0);
}

TEST(DeviceRuntimeTest, CallsLeaveTheContextOfTheThreadAsItWas) {
  const Current current(1);
  ASSERT_TRUE(current.IsCurrent());
  {
    const auto stream = *Runtime().MakeStream(kCuda0);
    EXPECT_TRUE(current.IsCurrent());
    const auto memory = *Runtime().Allocate(kCuda0, 10);
    const auto pinned = *Runtime().AllocatePinned(10);
    EXPECT_TRUE(current.IsCurrent());
    EXPECT_TRUE(Runtime().Fill(memory.get(), 1, 10, *stream).ok());
    EXPECT_TRUE(Runtime().Copy(pinned.get(), memory.get(), 10, *stream).ok());
    const auto event = *Runtime().Record(*stream);
    EXPECT_TRUE(event->EnqueueWait({kCuda1}).ok());
    EXPECT_TRUE(event->IsDone().ok());
    EXPECT_TRUE(Runtime().IsCapturing(*stream).ok());
    EXPECT_TRUE(Runtime().DeviceOf(memory.get()).ok());
    EXPECT_TRUE(Runtime().Synchronize(*stream, Soon()).ok());
    Runtime().KernelsOf(kCuda0).IgnoreError();
    EXPECT_TRUE(current.IsCurrent());
    // Errors as well.
    EXPECT_FALSE(Runtime().Fill(pinned.get(), 1, 1000, *stream).ok());
    EXPECT_FALSE(Runtime().Record({kCuda0, reinterpret_cast<void*>(0x40)}).ok());
    EXPECT_TRUE(current.IsCurrent());
  }
  EXPECT_TRUE(current.IsCurrent());
}

TEST(DeviceRuntimeTest, AContextIsCurrentForAScopeAndScopesNest) {
  const auto device = [] {
    CUdevice current = -1;
    FakeCuda::Get().Driver<CUresult(CUdevice*)>("cuCtxGetDevice")(&current);
    return current;
  };
  {
    const DeviceRuntime::ContextScope outer(Runtime(), kCuda1);
    EXPECT_TRUE(outer.status().ok());
    EXPECT_EQ(device(), 1);
    {
      const DeviceRuntime::ContextScope inner(Runtime(), kCuda0);
      EXPECT_EQ(device(), 0);
    }
    EXPECT_EQ(device(), 1);
  }
  EXPECT_EQ(device(), -1);
}

TEST(DeviceRuntimeTest, AnInterruptEndsAWaitOfTheHost) {
  const auto stream = *Runtime().MakeStream(kCuda0);
  const HeldStreams held(0);
  const InterruptScope scope([] { return InterruptedError("by the test"); });
  const absl::Status status = Runtime().Synchronize(*stream, Soon());
  EXPECT_TRUE(IsInterrupted(status)) << status;
}

TEST(DeviceRuntimeTest, ABrokenDeviceIsABackendErrorThatNamesIt) {
  const auto stream = *Runtime().MakeStream(kCuda1);
  const auto event = *Runtime().Record(*stream);
  FakeCuda::Get().break_device(1, CUDA_ERROR_ILLEGAL_ADDRESS);
  for (const absl::Status& status :
       {event->IsDone().status(), Runtime().Allocate(kCuda1, 10).status(),
        Runtime().Record(*stream).status(), Runtime().Synchronize(*stream, Soon())}) {
    EXPECT_EQ(KindOf(status), ErrorKind::kBackend) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "cuda:1")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "CUDA_ERROR_ILLEGAL_ADDRESS")) << status;
  }
  EXPECT_TRUE(Runtime().Allocate(kCuda0, 10).ok());
  FakeCuda::Get().break_device(1, 0);
}

TEST(DeviceRuntimeTest, WorkIsCapturedAndDoneAtEachLaunch) {
  const auto stream = *Runtime().MakeStream(kCuda0);
  const auto side = *Runtime().MakeStream(kCuda1);
  const auto memory = *Runtime().Allocate(kCuda0, 4);
  const auto copy = *Runtime().Allocate(kCuda1, 4);
  EXPECT_FALSE(*Runtime().IsCapturing(*stream));
  Capturing capturing(*stream);
  EXPECT_TRUE(*Runtime().IsCapturing(*stream));
  EXPECT_FALSE(*Runtime().IsCapturing(*side));
  EXPECT_FALSE(*Runtime().IsCapturing({kCuda0}));
  ASSERT_TRUE(Runtime().Fill(memory.get(), 5, 4, *stream).ok());
  ASSERT_TRUE((*Runtime().Record(*stream))->EnqueueWait(*side).ok());
  EXPECT_TRUE(*Runtime().IsCapturing(*side));
  ASSERT_TRUE(Runtime().Copy(copy.get(), memory.get(), 4, *side).ok());
  ASSERT_TRUE((*Runtime().Record(*side))->EnqueueWait(*stream).ok());
  ASSERT_EQ(capturing.End(), CUDA_SUCCESS);
  EXPECT_FALSE(*Runtime().IsCapturing(*side));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(Runtime().Fill(copy.get(), 0, 4, *side).ok());
    ASSERT_TRUE(Runtime().Synchronize(*side, Soon()).ok());
    capturing.Launch();
    EXPECT_EQ(Contents(copy.get(), 4, *stream), std::vector<char>(4, 5));
  }
}

TEST(DeviceRuntimeTest, ACapturedEventCannotBeAskedAndToTryEndsNoCapture) {
  const auto stream = *Runtime().MakeStream(kCuda0);
  Capturing capturing(*stream);
  const auto event = *Runtime().Record(*stream);
  EXPECT_EQ(KindOf(event->IsDone().status()), ErrorKind::kBackend);
  EXPECT_EQ(KindOf(Runtime().Synchronize(*stream, Soon())), ErrorKind::kBackend);
  EXPECT_EQ(capturing.End(), CUDA_SUCCESS);
}

TEST(DeviceRuntimeTest, OtherCallsEndNoCaptureThatIsGoingOn) {
  const auto stream = *Runtime().MakeStream(kCuda0);
  const auto other = *Runtime().MakeStream(kCuda0);
  const auto before = *Runtime().Record(*other);
  Capturing capturing(*stream);
  const auto use = [&] {
    const auto made = *Runtime().MakeStream(kCuda1);
    const auto memory = *Runtime().Allocate(kCuda0, 10);
    const auto pinned = *Runtime().AllocatePinned(10);
    EXPECT_TRUE(Runtime().Fill(memory.get(), 1, 10, *other).ok());
    EXPECT_TRUE(before->IsDone().ok());
    EXPECT_TRUE(Runtime().Synchronize(*other, Soon()).ok());
  };
  use();
  std::thread(use).join();
  EXPECT_EQ(capturing.End(), CUDA_SUCCESS);
}

// Copies among buffers of two devices on four streams, each behind the writers and readers of what
// it uses, while each piece of work is late by a random time.
TEST(DeviceRuntimeTest, EventsKeepTheOrderOfWorkThatIsLate) {
  constexpr int kBuffers = 6;
  constexpr int kCopies = 300;
  constexpr size_t kBytes = 64;
  FakeCuda::Get().delay_us(300);
  std::vector<std::shared_ptr<const Stream>> streams;
  for (int i = 0; i < 4; ++i)
    streams.push_back(*Runtime().MakeStream(i % 2 == 0 ? kCuda0 : kCuda1));
  std::vector<std::shared_ptr<void>> buffers;
  std::vector<std::shared_ptr<Event>> last_uses(kBuffers);
  std::vector<int> expected;
  for (int i = 0; i < kBuffers; ++i) {
    buffers.push_back(*Runtime().Allocate(i % 2 == 0 ? kCuda0 : kCuda1, kBytes));
    ASSERT_TRUE(
        Runtime().Fill(buffers[i].get(), static_cast<unsigned char>(i), kBytes, *streams[0]).ok());
    last_uses[i] = *Runtime().Record(*streams[0]);
    expected.push_back(i);
  }
  std::mt19937 random(16);
  for (int i = 0; i < kCopies; ++i) {
    const Stream& stream = *streams[random() % streams.size()];
    const size_t from = random() % kBuffers;
    const size_t to = (from + 1 + random() % (kBuffers - 1)) % kBuffers;
    ASSERT_TRUE(last_uses[from]->EnqueueWait(stream).ok());
    ASSERT_TRUE(last_uses[to]->EnqueueWait(stream).ok());
    if (i % 3 == 0) {
      ASSERT_TRUE(
          Runtime().Fill(buffers[to].get(), static_cast<unsigned char>(i), kBytes, stream).ok());
      expected[to] = i % 256;
    } else {
      ASSERT_TRUE(Runtime().Copy(buffers[to].get(), buffers[from].get(), kBytes, stream).ok());
      expected[to] = expected[from];
    }
    last_uses[from] = last_uses[to] = *Runtime().Record(stream);
  }
  for (int i = 0; i < kBuffers; ++i) {
    ASSERT_TRUE(last_uses[i]->EnqueueWait(*streams[0]).ok());
    EXPECT_EQ(Contents(buffers[i].get(), kBytes, *streams[0]),
              std::vector<char>(kBytes, static_cast<char>(expected[i])))
        << i;
  }
  FakeCuda::Get().delay_us(0);
}

TEST(DeviceRuntimeTest, ManyThreadsMayUseIt) {
  const fake_cuda_counts before = Counts();
  {
    const std::shared_ptr<const Stream> shared = *Runtime().MakeStream(kCuda0);
    std::vector<std::thread> threads;
    for (int id = 0; id < 8; ++id) {
      threads.emplace_back([id, &shared] {
        const Device device = {DeviceType::kCuda, id % 2};
        for (int i = 0; i < 50; ++i) {
          const auto own = *Runtime().MakeStream(device);
          const auto memory = *Runtime().Allocate(device, 32);
          ASSERT_TRUE(Runtime().Fill(memory.get(), static_cast<unsigned char>(i), 32, *own).ok());
          ASSERT_TRUE((*Runtime().Record(*own))->EnqueueWait(*shared).ok());
          ASSERT_EQ(Contents(memory.get(), 32, *shared),
                    std::vector<char>(32, static_cast<char>(i)));
        }
        EXPECT_EQ(FakeCuda::Get().context_depth(), 0);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(Counts().streams, before.streams);
  EXPECT_EQ(Counts().device_allocations, before.device_allocations);
}

TEST(DeviceRuntimeTest, AChildOfForkIsToldThatThereIsNone) {
  const auto stream = *Runtime().MakeStream(kCuda0);
  auto memory = *Runtime().Allocate(kCuda0, 10);
  auto event = *Runtime().Record(*stream);
  DeviceRuntime& runtime = Runtime();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto is_refused = [](const absl::Status& status) {
      return KindOf(status) == ErrorKind::kUnsupported &&
             absl::StrContains(status.message(), "fork");
    };
    bool all = is_refused(DeviceRuntime::Get().status()) && !DeviceRuntime::IsLoaded() &&
               is_refused(runtime.Allocate(kCuda0, 10).status()) &&
               is_refused(runtime.AllocatePinned(10).status()) &&
               is_refused(runtime.DeviceOf(&runtime).status()) &&
               is_refused(runtime.Record(*stream).status()) &&
               is_refused(event->IsDone().status()) && is_refused(event->EnqueueWait(*stream));
    // What the parent has made can be let go.
    event.reset();
    memory.reset();
    _exit(all ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(*event->IsDone() || Runtime().Synchronize(*stream, Soon()).ok());
}

TEST(DeviceTensorTest, IsMadeOnADevice) {
  const fake_cuda_counts before = Counts();
  {
    const absl::StatusOr<Tensor> tensor = EmptyOnDevice(kCuda1, DType::kFloat32, {2, 3});
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(tensor->ToString(), "float32[2, 3] on cuda:1");
    EXPECT_EQ(*Runtime().DeviceOf(tensor->data()), kCuda1);
    const Tensor part = tensor->Slice(1, 2);
    EXPECT_EQ(part.device(), kCuda1);
  }
  EXPECT_EQ(Counts().device_allocations, before.device_allocations);
  EXPECT_EQ(EmptyOnDevice(kCuda0, DType::kInt8, {0, 5})->numel(), 0);
  EXPECT_EQ(EmptyOnDevice({}, DType::kInt8, {3})->device(), Device{});
  EXPECT_EQ(KindOf(EmptyOnDevice(kCuda0, DType::kInt8, {-1}).status()), ErrorKind::kArgument);
  EXPECT_EQ(KindOf(EmptyOnDevice({DeviceType::kCuda, 7}, DType::kInt8, {1}).status()),
            ErrorKind::kArgument);
}

// Each of these looks at a process of its own, which has called nothing yet.
class DeviceRuntimeDeathTest : public ::testing::Test {
 protected:
  DeviceRuntimeDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  ~DeviceRuntimeDeathTest() override {
    for (const auto& [name, value] : former_) {
      if (value.has_value()) {
        setenv(name.c_str(), value->c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
  }

  // For the processes of this test.
  void Set(const std::string& name, const std::string& value) {
    former_[name] = base::GetEnv(name);
    setenv(name.c_str(), value.c_str(), 1);
  }

  // Exits with 0 if there is no runtime, for a reason with all of these parts.
  [[noreturn]] static void ExpectNone(const std::vector<std::string>& parts) {
    const bool was_loaded = DeviceRuntime::IsLoaded();
    const absl::Status status = DeviceRuntime::Get().status();
    bool fits = !was_loaded && !DeviceRuntime::IsLoaded() &&
                KindOf(status) == ErrorKind::kUnsupported &&
                DeviceRuntime::Get().status() == status;
    for (const std::string& part : parts) fits = fits && absl::StrContains(status.message(), part);
    if (!fits) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::_Exit(fits ? 0 : 1);
  }

 private:
  std::map<std::string, std::optional<std::string>> former_;
};

TEST_F(DeviceRuntimeDeathTest, WithoutALibraryThereIsNone) {
  Set("SYNCLINE_CUDA_LIBRARY", "/nowhere/libcuda.so.1");
  EXPECT_EXIT(ExpectNone({"/nowhere/libcuda.so.1"}), ::testing::ExitedWithCode(0), "");
}

TEST_F(DeviceRuntimeDeathTest, WithoutADeviceThereIsNone) {
  Set("FAKE_CUDA_DEVICES", "0");
  EXPECT_EXIT(ExpectNone({"no CUDA device", "CUDA_VISIBLE_DEVICES"}), ::testing::ExitedWithCode(0),
              "");
}

TEST_F(DeviceRuntimeDeathTest, WithoutAVisibleDeviceThereIsNone) {
  Set("CUDA_VISIBLE_DEVICES", "");
  EXPECT_EXIT(ExpectNone({"no CUDA device", "CUDA_VISIBLE_DEVICES"}), ::testing::ExitedWithCode(0),
              "");
}

TEST_F(DeviceRuntimeDeathTest, WhereTheDriverDoesNotStartThereIsNone) {
  Set("FAKE_CUDA_FAIL", "cuInit:1:803");
  EXPECT_EXIT(ExpectNone({"cuInit", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}),
              ::testing::ExitedWithCode(0), "");
}

TEST_F(DeviceRuntimeDeathTest, ADriverThatLacksWhatIsOptionalServes) {
  const std::string path = *base::GetEnv("SYNCLINE_CUDA_LIBRARY");
  Set("SYNCLINE_CUDA_LIBRARY", path.substr(0, path.rfind('/') + 1) + "libfake_cuda_old.so");
  const auto use = [] {
    const auto stream = *Runtime().MakeStream(kCuda0, DeviceRuntime::Priority::kHigh);
    const auto memory = *Runtime().Allocate(kCuda0, 10);
    const bool is_filled = Runtime().Fill(memory.get(), 4, 10, *stream).ok() &&
                           Contents(memory.get(), 10, *stream) == std::vector<char>(10, 4) &&
                           !*Runtime().IsCapturing(*stream);
    std::_Exit(is_filled ? 0 : 1);
  };
  EXPECT_EXIT(use(), ::testing::ExitedWithCode(0), "");
}

TEST_F(DeviceRuntimeDeathTest, PinnedMemoryMakesNoContextOnADeviceThatIsNotUsed) {
  const auto use = [] {
    if (FakeCuda::Get().Counts().contexts != 0) std::_Exit(2);
    DeviceRuntime& runtime = Runtime();
    if (FakeCuda::Get().Counts().contexts != 0) std::_Exit(3);
    // What the program works with is not known to the runtime yet.
    const Current current(1);
    const auto pinned = *runtime.AllocatePinned(10);
    if (FakeCuda::Get().Counts().contexts != 1) std::_Exit(4);
    std::thread([&runtime] {
      const auto more = *runtime.AllocatePinned(10);
      if (FakeCuda::Get().Counts().contexts != 1) std::_Exit(5);
    }).join();
    std::_Exit(0);
  };
  EXPECT_EXIT(use(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace syncline::device
