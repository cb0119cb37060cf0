// Each call of the driver fails in its turn.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/device/cuda_runtime.h"
#include "core/device/cuda_types.h"
#include "core/device/task_thread.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

constexpr Device kCuda0 = {DeviceType::kCuda, 0};

// What failed: a function of the driver, and which of its calls.
struct Fault {
  std::string function;
  int64_t nth;
};

std::map<std::string, int64_t> CallsSoFar() {
  std::map<std::string, int64_t> calls;
  FakeCuda::Get().each_called(
      [](const char* function, void* data) {
        auto& calls = *static_cast<std::map<std::string, int64_t>*>(data);
        calls[function] = 0;
      },
      &calls);
  for (auto& [function, count] : calls) count = FakeCuda::Get().calls(function.c_str());
  return calls;
}

// A new runtime, which has retained no context, so that all calls are made. Kept: they are never
// destroyed.
absl::StatusOr<CudaRuntime*> NewRuntime() {
  static auto* const made = new std::vector<CudaRuntime*>;
  absl::StatusOr<CudaRuntime*> runtime = CudaRuntime::Make();
  if (runtime.ok()) made->push_back(*runtime);
  return runtime;
}

struct Objects {
  std::shared_ptr<void> memory, pinned;
  std::shared_ptr<const Stream> stream;
  std::shared_ptr<Event> event;
};

// Uses everything, and does not wait, so that each run makes the same calls.
absl::Status UseAll(Objects& objects) {
  SYNCLINE_ASSIGN_OR_RETURN(CudaRuntime* const runtime, NewRuntime());
  SYNCLINE_ASSIGN_OR_RETURN(objects.stream,
                            runtime->MakeStream(kCuda0, DeviceRuntime::Priority::kHigh));
  SYNCLINE_ASSIGN_OR_RETURN(objects.memory, runtime->Allocate(kCuda0, 100));
  SYNCLINE_ASSIGN_OR_RETURN(objects.pinned, runtime->AllocatePinned(100));
  SYNCLINE_RETURN_IF_ERROR(runtime->DeviceOf(objects.memory.get()).status());
  SYNCLINE_RETURN_IF_ERROR(runtime->IsCapturing(*objects.stream).status());
  SYNCLINE_RETURN_IF_ERROR(runtime->Fill(objects.memory.get(), 1, 100, *objects.stream));
  SYNCLINE_RETURN_IF_ERROR(
      runtime->Copy(objects.pinned.get(), objects.memory.get(), 100, *objects.stream));
  SYNCLINE_ASSIGN_OR_RETURN(objects.event, runtime->Record(*objects.stream));
  SYNCLINE_RETURN_IF_ERROR(objects.event->EnqueueWait({kCuda0}));
  SYNCLINE_RETURN_IF_ERROR(objects.event->IsDone().status());
  const DeviceRuntime::ContextScope scope(*runtime, kCuda0);
  return scope.status();
}

// Waits until what was let go of is given back.
void AwaitReleases() { EXPECT_TRUE(TaskThread::Releases().AwaitIdle(Deadline(absl::Minutes(1)))); }

// The calls of a run in which none fails.
std::map<std::string, int64_t> CallsOfARun() {
  const std::map<std::string, int64_t> before = CallsSoFar();
  Objects objects;
  const absl::Status status = UseAll(objects);
  EXPECT_TRUE(status.ok()) << status;
  std::map<std::string, int64_t> calls = CallsSoFar();
  AwaitDevice(0);
  for (const auto& [function, count] : before) calls[function] -= count;
  return calls;
}

// "cuMemAlloc" of "cuMemAlloc_v2", which is how messages name it.
std::string NameOf(const std::string& symbol) { return symbol.substr(0, symbol.find("_v")); }

TEST(DeviceRuntimeFaultsTest, EachFailureIsAnErrorThatNamesTheCallAndNothingIsLeft) {
  const std::map<std::string, int64_t> calls = CallsOfARun();
  AwaitReleases();
  // Their failures are no failure of what is asked for.
  const std::vector<std::string> tolerated = {"cuCtxPopCurrent_v2", "cuCtxGetDevice",
                                              "cuThreadExchangeStreamCaptureMode"};
  int faults = 0;
  for (const auto& [function, count] : calls) {
    for (int64_t nth = 1; nth <= count; ++nth) {
      SCOPED_TRACE(absl::StrCat(function, " ", nth));
      const fake_cuda_counts before = FakeCuda::Get().Counts();
      absl::Status status;
      {
        Objects objects;
        FakeCuda::Get().fail_next(function.c_str(), static_cast<int>(nth),
                                  CUDA_ERROR_OUT_OF_MEMORY);
        status = UseAll(objects);
        FakeCuda::Get().fail_next(function.c_str(), 0, 0);
        AwaitDevice(0);
      }
      // Where a context could not be popped, the thread has it still.
      while (FakeCuda::Get().context_depth() > 0) {
        ASSERT_EQ(function, "cuCtxPopCurrent_v2");
        CUcontext context = nullptr;
        FakeCuda::Get().Driver<CUresult(CUcontext*)>("cuCtxPopCurrent_v2")(&context);
      }
      CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
      FakeCuda::Get().Driver<CUresult(CUstreamCaptureMode*)>("cuThreadExchangeStreamCaptureMode")(
          &mode);
      const bool is_tolerated =
          std::find(tolerated.begin(), tolerated.end(), function) != tolerated.end();
      // Every second call ends a relaxed mode, which lasts where that fails.
      if (function != "cuThreadExchangeStreamCaptureMode" || nth % 2 == 1) {
        EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
      }
      // AnyDevice looks for the current device by it, and else takes one in use.
      const bool may_succeed = is_tolerated || (function == "cuDeviceGet" && nth > 1);
      if (!may_succeed) {
        EXPECT_FALSE(status.ok());
        EXPECT_TRUE(absl::StrContains(status.message(), NameOf(function))) << status;
        EXPECT_TRUE(absl::StrContains(status.message(), "CUDA_ERROR_OUT_OF_MEMORY")) << status;
        const ErrorKind kind = KindOf(status);
        EXPECT_TRUE(kind == ErrorKind::kBackend || kind == ErrorKind::kUnsupported) << status;
      }
      AwaitReleases();
      const fake_cuda_counts after = FakeCuda::Get().Counts();
      EXPECT_EQ(after.device_allocations, before.device_allocations);
      EXPECT_EQ(after.pinned_allocations, before.pinned_allocations);
      EXPECT_EQ(after.streams, before.streams);
      // The runtime keeps the one event for reuse.
      EXPECT_LE(after.events, before.events + 1);
      ++faults;
    }
  }
  EXPECT_GT(faults, 30);
  // Nothing is left of it all.
  CallsOfARun();
}

TEST(DeviceRuntimeFaultsTest, AnEventThatCouldNotBeRecordedIsUsedAgain) {
  CudaRuntime* const runtime = *NewRuntime();
  const auto stream = *runtime->MakeStream(kCuda0, DeviceRuntime::Priority::kDefault);
  const int64_t events = FakeCuda::Get().Counts().events;
  for (int i = 0; i < 5; ++i) {
    FakeCuda::Get().fail_next("cuEventRecord", 1, CUDA_ERROR_UNKNOWN);
    EXPECT_FALSE(runtime->Record(*stream).ok());
  }
  EXPECT_TRUE(runtime->Record(*stream).ok());
  EXPECT_EQ(FakeCuda::Get().Counts().events, events + 1);
}

TEST(DeviceRuntimeFaultsTest, ADeviceThatHadNoMemoryForAContextIsAskedAgain) {
  CudaRuntime* const runtime = *NewRuntime();
  FakeCuda::Get().fail_next("cuDevicePrimaryCtxRetain", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_FALSE(runtime->Allocate(kCuda0, 1).ok());
  EXPECT_TRUE(runtime->Allocate(kCuda0, 1).ok());
}

TEST(DeviceRuntimeFaultsTest, AMemoryErrorSaysHowMuchWasAskedFor) {
  CudaRuntime* const runtime = *NewRuntime();
  AwaitReleases();  // Or else the allocation would be tried again.
  FakeCuda::Get().fail_next("cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(runtime->Allocate(kCuda0, 12345).status().message(),
            "cuMemAlloc of 12345 bytes on cuda:0 failed: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
}

}  // namespace
}  // namespace syncline::device
