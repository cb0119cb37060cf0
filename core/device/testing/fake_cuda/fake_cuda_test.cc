#include "core/device/testing/fake_cuda/fake_cuda.h"

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/device/cuda_types.h"
#include "core/device/testing/fake_cuda_env.h"
#include "core/testing/faults.h"
#include "gtest/gtest.h"

namespace syncline::device {
namespace {

// Before main(): the library looks once. Tests that want another number are processes of their own.
const bool has_devices = setenv("FAKE_CUDA_DEVICES", "2", /*overwrite=*/0) == 0;

// The functions of the library, by their symbols.
struct Driver {
#define SYNCLINE_MEMBER(name, symbol, parameters) \
  CUresult(*name) parameters = FakeCuda::Get().Driver<CUresult parameters>(#symbol);
  SYNCLINE_CUDA_FUNCTIONS(SYNCLINE_MEMBER, SYNCLINE_MEMBER)
  // Those that the product does not call.
  SYNCLINE_MEMBER(cuCtxGetCurrent, cuCtxGetCurrent, (CUcontext*))
  SYNCLINE_MEMBER(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext))
  SYNCLINE_MEMBER(cuCtxSynchronize, cuCtxSynchronize, ())
  SYNCLINE_MEMBER(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice))
  SYNCLINE_MEMBER(cuStreamQuery, cuStreamQuery, (CUstream))
  SYNCLINE_MEMBER(cuStreamSynchronize, cuStreamSynchronize, (CUstream))
  SYNCLINE_MEMBER(cuEventSynchronize, cuEventSynchronize, (CUevent))
  SYNCLINE_MEMBER(cuMemHostRegister, cuMemHostRegister_v2, (void*, size_t, unsigned int))
  SYNCLINE_MEMBER(cuMemHostUnregister, cuMemHostUnregister, (void*))
  SYNCLINE_MEMBER(cuPointerGetAttribute, cuPointerGetAttribute,
                  (void*, CUpointer_attribute, CUdeviceptr))
  SYNCLINE_MEMBER(cuStreamBeginCapture, cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))
  SYNCLINE_MEMBER(cuStreamEndCapture, cuStreamEndCapture, (CUstream, CUgraph*))
  SYNCLINE_MEMBER(cuGraphInstantiate, cuGraphInstantiateWithFlags,
                  (CUgraphExec*, CUgraph, unsigned long long))  // NOLINT
  SYNCLINE_MEMBER(cuGraphLaunch, cuGraphLaunch, (CUgraphExec, CUstream))
  SYNCLINE_MEMBER(cuGraphDestroy, cuGraphDestroy, (CUgraph))
  SYNCLINE_MEMBER(cuGraphExecDestroy, cuGraphExecDestroy, (CUgraphExec))
#undef SYNCLINE_MEMBER
};

const Driver& Cuda() {
  static const auto* const driver = new Driver;
  return *driver;
}

constexpr size_t kBytes = 64;

class FakeCudaTest : public ::testing::Test {
 protected:
  FakeCudaTest() {
    EXPECT_EQ(Cuda().cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(Cuda().cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    EXPECT_EQ(Cuda().cuCtxPushCurrent(context_), CUDA_SUCCESS);
    EXPECT_EQ(Cuda().cuMemAlloc(&memory_, kBytes), CUDA_SUCCESS);
    EXPECT_EQ(Cuda().cuMemsetD8Async(memory_, 0, kBytes, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(Cuda().cuCtxSynchronize(), CUDA_SUCCESS);
  }

  ~FakeCudaTest() override {
    EXPECT_EQ(Cuda().cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(Cuda().cuMemFree(memory_), CUDA_SUCCESS);
    for (const CUstream stream : streams_) Cuda().cuStreamDestroy(stream);
    for (const CUevent event : events_) Cuda().cuEventDestroy(event);
    CUcontext popped = nullptr;
    EXPECT_EQ(Cuda().cuCtxPopCurrent(&popped), CUDA_SUCCESS);
    EXPECT_EQ(popped, context_);
    EXPECT_EQ(FakeCuda::Get().context_depth(), 0);
    EXPECT_EQ(Cuda().cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    const fake_cuda_counts counts = FakeCuda::Get().Counts();
    EXPECT_EQ(counts.contexts + counts.streams + counts.events + counts.device_allocations +
                  counts.pinned_allocations + counts.libraries + counts.graphs +
                  counts.pending_items,
              0);
  }

  CUstream NewStream(unsigned int flags = CU_STREAM_NON_BLOCKING) {
    streams_.emplace_back();
    EXPECT_EQ(Cuda().cuStreamCreateWithPriority(&streams_.back(), flags, 0), CUDA_SUCCESS);
    return streams_.back();
  }

  CUevent NewEvent() {
    events_.emplace_back();
    EXPECT_EQ(Cuda().cuEventCreate(&events_.back(), CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    return events_.back();
  }

  CUevent Record(CUstream stream) {
    const CUevent event = NewEvent();
    EXPECT_EQ(Cuda().cuEventRecord(event, stream), CUDA_SUCCESS);
    return event;
  }

  CUresult Fill(unsigned char value, CUstream stream) {
    return Cuda().cuMemsetD8Async(memory_, value, kBytes, stream);
  }

  // The first byte, once `stream` is done.
  int Contents(CUstream stream) {
    unsigned char byte = 0;
    EXPECT_EQ(Cuda().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(&byte), memory_, 1, stream),
              CUDA_SUCCESS);
    EXPECT_EQ(Cuda().cuStreamSynchronize(stream), CUDA_SUCCESS);
    return byte;
  }

  CUgraphExec Instantiate(CUgraph graph) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(Cuda().cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(Cuda().cuGraphDestroy(graph), CUDA_SUCCESS);
    return exec;
  }

  CUcontext context_ = nullptr;
  CUdeviceptr memory_ = 0;

 private:
  std::vector<CUstream> streams_;
  std::vector<CUevent> events_;
};

// Blocks a stream by a function of the host until it is opened.
class Gate {
 public:
  explicit Gate(CUstream stream) : stream_(stream) {
    const auto wait = [](void* data) {
      auto* const gate = static_cast<Gate*>(data);
      std::unique_lock<std::mutex> lock(gate->mutex_);
      gate->opened_.wait(lock, [gate] { return gate->is_open_; });
    };
    EXPECT_EQ(Cuda().cuLaunchHostFunc(stream, wait, this), CUDA_SUCCESS);
  }
  // The function has returned then.
  ~Gate() {
    Open();
    EXPECT_EQ(Cuda().cuStreamSynchronize(stream_), CUDA_SUCCESS);
  }

  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }

 private:
  const CUstream stream_;
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

TEST_F(FakeCudaTest, NewMemoryIsGarbage) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(Cuda().cuMemAlloc(&memory, 3), CUDA_SUCCESS);
  unsigned char bytes[3] = {};
  ASSERT_EQ(Cuda().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(bytes), memory, 3, nullptr),
            CUDA_SUCCESS);
  ASSERT_EQ(Cuda().cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_NE(bytes[2], 0);
  EXPECT_EQ(Cuda().cuMemFree(memory), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, CopiesAreDoneByTheStreamAndNotByTheCall) {
  const CUstream stream = NewStream();
  unsigned char source = 1;
  {
    const HeldStreams held;
    ASSERT_EQ(Cuda().cuMemcpyAsync(memory_, reinterpret_cast<CUdeviceptr>(&source), 1, stream),
              CUDA_SUCCESS);
    EXPECT_EQ(Cuda().cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    source = 2;  // Too early: CUDA may or may not have looked.
  }
  EXPECT_EQ(Contents(stream), 2);
}

TEST_F(FakeCudaTest, TheDefaultStreamOrdersBlockingStreamsAndNoOthers) {
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT);
  const CUstream free = NewStream();
  for (const bool of_default : {true, false}) {
    Gate gate(of_default ? nullptr : blocking);
    const CUevent before = Record(free);
    const CUevent behind = Record(of_default ? blocking : nullptr);
    EXPECT_EQ(Cuda().cuEventSynchronize(before), CUDA_SUCCESS);
    EXPECT_EQ(Cuda().cuEventQuery(behind), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(Cuda().cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
    gate.Open();
    EXPECT_EQ(Cuda().cuEventSynchronize(behind), CUDA_SUCCESS);
    EXPECT_EQ(Cuda().cuStreamQuery(free), CUDA_SUCCESS);
    ASSERT_EQ(Cuda().cuCtxSynchronize(), CUDA_SUCCESS);
  }
}

TEST_F(FakeCudaTest, AWaitIsForWhatTheEventWasWhenItWasEnqueued) {
  const CUstream first = NewStream();
  const CUstream second = NewStream();
  Gate gate(first);
  const CUevent event = Record(second);
  EXPECT_EQ(Cuda().cuStreamWaitEvent(second, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuEventRecord(event, first), CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuStreamSynchronize(second), CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuEventQuery(event), CUDA_ERROR_NOT_READY);
}

TEST_F(FakeCudaTest, AnEventThatWasNeverRecordedIsDone) {
  const CUevent event = NewEvent();
  EXPECT_EQ(Cuda().cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuStreamWaitEvent(NewStream(), event, 0), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, AFunctionOfTheHostMayMakeNoCalls) {
  const CUstream stream = NewStream();
  CUresult result = CUDA_SUCCESS;
  const auto call = [](void* data) {
    CUdeviceptr memory = 0;
    *static_cast<CUresult*>(data) = Cuda().cuMemAlloc(&memory, 1);
  };
  ASSERT_EQ(Cuda().cuLaunchHostFunc(stream, call, &result), CUDA_SUCCESS);
  ASSERT_EQ(Cuda().cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(result, CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(FakeCudaTest, WhatIsDestroyedCannotBeUsed) {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  ASSERT_EQ(Cuda().cuStreamCreateWithPriority(&stream, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(Cuda().cuEventCreate(&event, 0), CUDA_SUCCESS);
  ASSERT_EQ(Cuda().cuStreamDestroy(stream), CUDA_SUCCESS);
  ASSERT_EQ(Cuda().cuEventDestroy(event), CUDA_SUCCESS);
  const CUstream other = NewStream();
  for (const CUresult result :
       {Fill(1, stream), Cuda().cuStreamSynchronize(stream), Cuda().cuStreamDestroy(stream),
        Cuda().cuEventDestroy(event), Cuda().cuEventQuery(event),
        Cuda().cuEventRecord(event, other), Cuda().cuEventRecord(Record(other), stream),
        Cuda().cuStreamWaitEvent(other, event, 0)}) {
    EXPECT_EQ(result, CUDA_ERROR_INVALID_HANDLE);
  }
}

TEST_F(FakeCudaTest, AnEventIsRecordedOnStreamsOfItsDeviceAlone) {
  const CUevent event = NewEvent();
  CUcontext other = nullptr;
  ASSERT_EQ(Cuda().cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(Cuda().cuCtxPushCurrent(other), CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuEventRecord(event, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(Cuda().cuStreamWaitEvent(nullptr, event, 0), CUDA_SUCCESS);
  ASSERT_EQ(Cuda().cuCtxPopCurrent(&other), CUDA_SUCCESS);
  ASSERT_EQ(Cuda().cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, BadAddressesAreRefused) {
  char host[kBytes * 2] = {};
  const auto host_address = reinterpret_cast<CUdeviceptr>(host);
  for (const CUresult result :
       {Cuda().cuMemFree(memory_ + 1), Cuda().cuMemFree(host_address), Cuda().cuMemFreeHost(host),
        Cuda().cuMemFreeHost(reinterpret_cast<void*>(memory_)),
        Cuda().cuMemsetD8Async(host_address, 0, 1, nullptr),
        Cuda().cuMemsetD8Async(memory_, 0, kBytes + 1, nullptr),
        Cuda().cuMemcpyAsync(memory_ + 1, host_address, kBytes, nullptr),
        Cuda().cuMemcpyAsync(host_address, memory_, kBytes + 1, nullptr),
        Cuda().cuMemcpyAsync(host_address, 0, 1, nullptr)}) {
    EXPECT_EQ(result, CUDA_ERROR_INVALID_VALUE);
  }
  CUdeviceptr none = 0;
  EXPECT_EQ(Cuda().cuMemAlloc(&none, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaTest, MemoryThatIsFreedTooEarlyBreaksTheDevice) {
  CUdeviceptr memory = 0;
  const CUstream stream = NewStream();
  ASSERT_EQ(Cuda().cuMemAlloc(&memory, kBytes), CUDA_SUCCESS);
  {
    const HeldStreams held;
    ASSERT_EQ(Cuda().cuMemsetD8Async(memory, 0, kBytes, stream), CUDA_SUCCESS);
    ASSERT_EQ(Cuda().cuMemFree(memory), CUDA_SUCCESS);
  }
  EXPECT_EQ(Cuda().cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  // And stays so.
  EXPECT_EQ(Fill(1, nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
  FakeCuda::Get().break_device(0, 0);
  EXPECT_EQ(Contents(nullptr), 0);
}

TEST_F(FakeCudaTest, MemoryMayBeFreedOnceTheDeviceHasDoneWhatItWasGiven) {
  const WaitingFrees waiting;
  const FakeCuda& fake = FakeCuda::Get();
  CUdeviceptr memory = 0;
  const CUstream stream = NewStream();
  ASSERT_EQ(Cuda().cuMemAlloc(&memory, kBytes), CUDA_SUCCESS);
  std::thread freeing;
  {
    const HeldStreams held;
    ASSERT_EQ(Cuda().cuMemsetD8Async(memory, 0, kBytes, stream), CUDA_SUCCESS);
    const int64_t calls = fake.calls("cuMemFree_v2");
    freeing = std::thread([&] {
      EXPECT_EQ(Cuda().cuCtxPushCurrent(context_), CUDA_SUCCESS);
      EXPECT_EQ(Cuda().cuMemFree(memory), CUDA_SUCCESS);
    });
    while (fake.calls("cuMemFree_v2") == calls) std::this_thread::yield();
    EXPECT_EQ(fake.Counts().device_allocations, 2);
  }
  freeing.join();
  EXPECT_EQ(fake.Counts().device_allocations, 1);
  EXPECT_EQ(Cuda().cuStreamSynchronize(stream), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, RegisteredMemoryIsOfTheHost) {
  std::vector<char> host(100);
  CUmemorytype type{};
  const auto address = reinterpret_cast<CUdeviceptr>(host.data());
  const auto type_of = [&](CUdeviceptr asked) {
    return Cuda().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, asked);
  };
  EXPECT_EQ(type_of(address), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(Cuda().cuMemHostRegister(host.data(), 100, 1), CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuMemHostRegister(host.data() + 50, 100, 1),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(type_of(address + 99), CUDA_SUCCESS);
  EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
  EXPECT_EQ(type_of(address + 100), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(type_of(memory_), CUDA_SUCCESS);
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(Cuda().cuMemHostUnregister(host.data()), CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuMemHostUnregister(host.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_F(FakeCudaTest, AThreadHasContextsOfItsOwn) {
  std::thread([] {
    CUdeviceptr memory = 0;
    CUcontext context = nullptr;
    EXPECT_EQ(Cuda().cuMemAlloc(&memory, 1), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(Cuda().cuCtxPopCurrent(&context), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(Cuda().cuCtxGetCurrent(&context), CUDA_SUCCESS);
    EXPECT_EQ(context, nullptr);
  }).join();
  EXPECT_EQ(Cuda().cuCtxPushCurrent(reinterpret_cast<CUcontext>(0x7)), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(FakeCudaTest, AContextEndsWithItsLastReference) {
  CUcontext other = nullptr;
  ASSERT_EQ(Cuda().cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(Cuda().cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(Cuda().cuCtxPushCurrent(other), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  EXPECT_EQ(Cuda().cuMemAlloc(&memory, 1), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(Cuda().cuCtxPopCurrent(&other), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, WithoutAThreadForAStreamWorkIsRefused) {
  const CUstream stream = NewStream();
  {
    const ScopedFault fault("pthread_create");
    EXPECT_EQ(Fill(1, stream), CUDA_ERROR_OPERATING_SYSTEM);
  }
  EXPECT_EQ(Fill(2, stream), CUDA_SUCCESS);
  EXPECT_EQ(Contents(stream), 2);
}

TEST_F(FakeCudaTest, TheCallsThatAreToFailDo) {
  const FakeCuda& fake = FakeCuda::Get();
  const int64_t calls = fake.calls("cuEventQuery");
  const CUevent event = NewEvent();
  fake.fail_next("cuEventQuery", 2, 700);
  EXPECT_EQ(Cuda().cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuEventQuery(event), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(Cuda().cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(fake.calls("cuEventQuery"), calls + 3);
}

// An image as nvcc begins it.
constexpr unsigned int kImage[4] = {0xBA55ED50};

void Store(const unsigned int grid[3], const unsigned int block[3], void* const* arguments) {
  auto* const to = *static_cast<unsigned char**>(arguments[0]);
  const int value = *static_cast<int*>(arguments[1]);
  to[0] = static_cast<unsigned char>(value + grid[0] + block[1]);
}

TEST_F(FakeCudaTest, KernelsRunOnTheStreamWithCopiesOfTheirArguments) {
  const size_t sizes[] = {sizeof(void*), sizeof(int)};
  FakeCuda::Get().register_kernel("store", &Store, sizes, 2);
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(Cuda().cuLibraryLoadData(&library, kImage, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuLibraryGetKernel(&kernel, library, "unknown"), CUDA_ERROR_NOT_FOUND);
  ASSERT_EQ(Cuda().cuLibraryGetKernel(&kernel, library, "store"), CUDA_SUCCESS);
  ASSERT_EQ(Cuda().cuKernelGetFunction(&function, kernel), CUDA_SUCCESS);
  const CUstream stream = NewStream();
  {
    const HeldStreams held;
    CUdeviceptr to = memory_;
    int value = 10;
    void* arguments[] = {&to, &value};
    EXPECT_EQ(Cuda().cuLaunchKernel(function, 2, 1, 1, 1, 3, 1, 0, stream, arguments, nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(Cuda().cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Cuda().cuLaunchKernel(function, 1, 1, 1, 1025, 1, 1, 0, stream, arguments, nullptr),
              CUDA_ERROR_INVALID_VALUE);
    to = 0;
    value = 0;
  }
  EXPECT_EQ(Contents(stream), 15);
  EXPECT_EQ(Cuda().cuLibraryUnload(library), CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuLibraryGetKernel(&kernel, library, "store"), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(FakeCudaTest, WhatIsNoImageIsRefused) {
  CUmodule module = nullptr;
  EXPECT_EQ(Cuda().cuModuleLoadData(&module, "text"), CUDA_ERROR_INVALID_IMAGE);
  ASSERT_EQ(Cuda().cuModuleLoadData(&module, kImage), CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, ABranchedGraphIsDoneInOrderAtEachLaunch) {
  const CUstream first = NewStream();
  const CUstream second = NewStream();
  CUdeviceptr other = 0;
  ASSERT_EQ(Cuda().cuMemAlloc(&other, kBytes), CUDA_SUCCESS);
  FakeCuda::Get().delay_us(500);
  ASSERT_EQ(Cuda().cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(Fill(1, first), CUDA_SUCCESS);
  ASSERT_EQ(Cuda().cuStreamWaitEvent(second, Record(first), 0), CUDA_SUCCESS);
  ASSERT_EQ(Cuda().cuMemcpyAsync(other, memory_, kBytes, second), CUDA_SUCCESS);
  ASSERT_EQ(Cuda().cuStreamWaitEvent(first, Record(second), 0), CUDA_SUCCESS);
  ASSERT_EQ(Fill(2, first), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(Cuda().cuStreamEndCapture(first, &graph), CUDA_SUCCESS);
  EXPECT_EQ(Contents(first), 0);  // Nothing is done by a capture.
  const CUgraphExec exec = Instantiate(graph);
  for (int launch = 0; launch < 5; ++launch) {
    ASSERT_EQ(Cuda().cuMemsetD8Async(other, 9, kBytes, first), CUDA_SUCCESS);
    ASSERT_EQ(Cuda().cuGraphLaunch(exec, first), CUDA_SUCCESS);
    EXPECT_EQ(Contents(first), 2);
    EXPECT_EQ(*reinterpret_cast<unsigned char*>(other), 1);
  }
  FakeCuda::Get().delay_us(0);
  EXPECT_EQ(Cuda().cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuMemFree(other), CUDA_SUCCESS);
}

// What makes a capture invalid, and what the call and the end of the capture return.
class FakeCudaCaptureTest : public FakeCudaTest {
 protected:
  FakeCudaCaptureTest() { Begin(); }

  void Begin() {
    EXPECT_EQ(Cuda().cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  }

  CUresult End() {
    CUgraph graph = nullptr;
    const CUresult result = Cuda().cuStreamEndCapture(stream_, &graph);
    if (graph != nullptr) {
      EXPECT_EQ(Cuda().cuGraphDestroy(graph), CUDA_SUCCESS);
    }
    return result;
  }

  const CUstream stream_ = NewStream(CU_STREAM_DEFAULT);
  const CUstream other_ = NewStream();
};

TEST_F(FakeCudaCaptureTest, AnAllocationEndsACaptureOfAnyThreadUnlessItIsRelaxed) {
  CUdeviceptr memory = 0;
  const auto allocate = [&memory] {
    CUcontext context = nullptr;
    CUcontext popped = nullptr;
    Cuda().cuDevicePrimaryCtxRetain(&context, 0);
    Cuda().cuCtxPushCurrent(context);
    const CUresult result = Cuda().cuMemAlloc(&memory, 1);
    if (result == CUDA_SUCCESS) {
      EXPECT_EQ(Cuda().cuMemFree(memory), CUDA_SUCCESS);
    }
    Cuda().cuCtxPopCurrent(&popped);
    Cuda().cuDevicePrimaryCtxRelease(0);
    return result;
  };
  const auto relaxed = [&allocate] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    EXPECT_EQ(Cuda().cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    EXPECT_EQ(allocate(), CUDA_SUCCESS);
    EXPECT_EQ(Cuda().cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  };
  relaxed();
  std::thread(relaxed).join();
  EXPECT_EQ(End(), CUDA_SUCCESS);
  Begin();
  EXPECT_EQ(allocate(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  Begin();
  std::thread([&] { EXPECT_EQ(allocate(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }).join();
  EXPECT_EQ(Fill(1, stream_), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(FakeCudaCaptureTest, ACapturedEventCannotBeAsked) {
  const CUevent event = Record(stream_);
  EXPECT_EQ(Cuda().cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(FakeCudaCaptureTest, ACapturedStreamCannotBeAwaited) {
  EXPECT_EQ(Cuda().cuStreamSynchronize(stream_), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(FakeCudaCaptureTest, WorkOfAForkedStreamMustBeJoined) {
  ASSERT_EQ(Cuda().cuStreamWaitEvent(other_, Record(stream_), 0), CUDA_SUCCESS);
  ASSERT_EQ(Fill(1, other_), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  Begin();
  ASSERT_EQ(Cuda().cuStreamWaitEvent(other_, Record(stream_), 0), CUDA_SUCCESS);
  EXPECT_EQ(Cuda().cuStreamEndCapture(other_, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(FakeCudaCaptureTest, ACaptureDoesNotWaitForWorkOutsideOfIt) {
  const CUevent outside = Record(other_);
  EXPECT_EQ(Cuda().cuStreamWaitEvent(stream_, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(FakeCudaCaptureTest, TheDefaultStreamCannotBeUsedWhileABlockingStreamIsCaptured) {
  CUstreamCaptureStatus status{};
  EXPECT_EQ(Cuda().cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(Fill(1, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(FakeCudaCaptureTest, AnotherThreadCannotEndIt) {
  std::thread([this] { EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD); }).join();
  EXPECT_EQ(End(), CUDA_SUCCESS);
}

// Each of these is a process with an environment of its own.
class FakeCudaDeathTest : public ::testing::Test {
 protected:
  FakeCudaDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  ~FakeCudaDeathTest() override {
    for (const std::string& name : set_) unsetenv(name.c_str());
    setenv("FAKE_CUDA_DEVICES", "2", 1);
  }

  void Set(const std::string& name, const std::string& value) {
    set_.push_back(name);
    setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::vector<std::string> set_;
};

TEST_F(FakeCudaDeathTest, WithoutDevicesItDoesNotStart) {
  Set("FAKE_CUDA_DEVICES", "0");
  EXPECT_EXIT(std::_Exit(Cuda().cuInit(0)), ::testing::ExitedWithCode(CUDA_ERROR_NO_DEVICE), "");
}

TEST_F(FakeCudaDeathTest, CallsFailAsTheEnvironmentSays) {
  Set("FAKE_CUDA_FAIL", "cuDeviceGetCount:2,cuInit:1:3");
  const auto use = [] {
    int count = 0;
    const bool fits = Cuda().cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                      Cuda().cuInit(0) == CUDA_SUCCESS &&
                      Cuda().cuDeviceGetCount(&count) == CUDA_SUCCESS &&
                      Cuda().cuDeviceGetCount(&count) == CUDA_ERROR_OUT_OF_MEMORY;
    std::_Exit(fits ? 0 : 1);
  };
  EXPECT_EXIT(use(), ::testing::ExitedWithCode(0), "");
}

TEST_F(FakeCudaDeathTest, ADriverOfCuda12RefusesOurImages) {
  Set("FAKE_CUDA_DRIVER_VERSION", "12040");
  const auto use = [] {
    int version = 0;
    CUlibrary library = nullptr;
    const bool fits = Cuda().cuInit(0) == CUDA_SUCCESS &&
                      Cuda().cuDriverGetVersion(&version) == CUDA_SUCCESS && version == 12040 &&
                      Cuda().cuLibraryLoadData(&library, kImage, nullptr, nullptr, 0, nullptr,
                                               nullptr, 0) == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    std::_Exit(fits ? 0 : 1);
  };
  EXPECT_EXIT(use(), ::testing::ExitedWithCode(0), "");
}

TEST_F(FakeCudaDeathTest, VisibleDevicesAreNumberedFromZero) {
  Set("FAKE_CUDA_DEVICES", "4");
  Set("CUDA_VISIBLE_DEVICES", "3,1,9,0");
  const auto use = [] {
    int count = 0;
    char ids[2][20] = {};
    const bool fits =
        Cuda().cuInit(0) == CUDA_SUCCESS && Cuda().cuDeviceGetCount(&count) == CUDA_SUCCESS &&
        count == 2 && Cuda().cuDeviceGetPCIBusId(ids[0], 20, 0) == CUDA_SUCCESS &&
        Cuda().cuDeviceGetPCIBusId(ids[1], 20, 1) == CUDA_SUCCESS &&
        std::string(ids[0]) == "0000:04:00.0" && std::string(ids[1]) == "0000:02:00.0";
    std::_Exit(fits ? 0 : 1);
  };
  EXPECT_EXIT(use(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace syncline::device
