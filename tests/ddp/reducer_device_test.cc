// Reducers of several ranks on devices: streams, lifetimes, failures.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/device/cuda_types.h"
#include "core/device/device_runtime.h"
#include "core/device/task_thread.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "syncline/device_memory.h"
#include "syncline/process_group.h"
#include "syncline/reducer.h"
#include "syncline/status.h"
#include "syncline/stream.h"
#include "syncline/tensor.h"
#include "tests/ddp/reducer_ranks.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// One bucket for all three parameters.
Reducer::Options OneBucket() {
  Reducer::Options options;
  options.names = {"w", "b", "v"};
  return options;
}

// Holds the streams of the devices of ranks 0 and 1 as long as it lives.
struct BothHeld {
  device::HeldStreams first{0}, second{1};
};

// Has simulated devices be late, by a random time up to this for each item of a stream.
void Delay(int64_t microseconds) {
  if (device::DevicesAreSimulated()) device::FakeCuda::Get().delay_us(microseconds);
}

absl::Status CopyAll(Reducer& reducer, float mine) {
  for (int64_t i : {2, 1, 0})
    SYNCLINE_RETURN_IF_ERROR(Copy(reducer, i, mine + static_cast<float>(i)));
  return absl::OkStatus();
}

absl::Status AllHold(const Reducer& reducer, float expected) {
  for (int64_t i : {2, 1, 0}) {
    SYNCLINE_RETURN_IF_ERROR(Holds(reducer, i, expected + static_cast<float>(i)));
  }
  return absl::OkStatus();
}

// Steps whose end no host waits for: devices stand still until all ranks have gone through them.
void ExpectNoHostWaits(const std::string& backend, Reducer::Unused unused) {
  Countdown ready(2), passed(2);
  std::unique_ptr<BothHeld> held;
  absl::Mutex mutex;
  ExpectOnRanks(
      2,
      [&](Group group) -> absl::Status {
        Reducer::Options options = SmallOptions();
        options.unused = unused;
        SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                  Reducer::Create(group, SmallModel(), options));
        // Communicators and buckets are made; unused parameters are known.
        for (int step = 0; step < 2; ++step) {
          SYNCLINE_RETURN_IF_ERROR(CopyAll(*reducer, 0));
          SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
          SYNCLINE_RETURN_IF_ERROR(AllHold(*reducer, 0));
        }
        ready.StepAndWait();
        {
          absl::MutexLock lock(&mutex);
          if (held == nullptr) held = std::make_unique<BothHeld>();
        }
        for (int step = 0; step < 3; ++step) {
          const float mine = static_cast<float>(10 * step + 2 * group->rank());
          SYNCLINE_RETURN_IF_ERROR(CopyAll(*reducer, mine));
          SYNCLINE_ASSIGN_OR_RETURN(const bool comes, reducer->AwaitBucket(0));
          EXPECT_TRUE_OR_RETURN(comes);
          SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
          EXPECT_TRUE_OR_RETURN(reducer->stats().end == std::vector<int64_t>(3, 0));
        }
        // Nothing has moved.
        EXPECT_TRUE_OR_RETURN(device::FakeCuda::Get().Counts().pending_items > 0);
        passed.StepAndWait();
        {
          absl::MutexLock lock(&mutex);
          held.reset();
        }
        SYNCLINE_RETURN_IF_ERROR(AllHold(*reducer, 21));
        SYNCLINE_RETURN_IF_ERROR(group->status());
        return absl::OkStatus();
      },
      backend);
}

TEST(ReducerDeviceTest, NoHostWaitsForADeviceInAStep) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  for (const auto unused : {Reducer::Unused::kRefused, Reducer::Unused::kRecorded}) {
    ExpectNoHostWaits("auto@cuda", unused);
    ExpectNoHostWaits("nccl@cuda", unused);
  }
  // The flags go by the backend of the host.
  ExpectNoHostWaits("auto@cuda", Reducer::Unused::kFound);
}

// Each thread has a stream of its own, which is slow; what it lets go is kept.
TEST(ReducerDeviceTest, GradientsOfABucketComeOnSeveralStreamsAndTheirValuesAreLetGo) {
  Delay(2000);
  for (const char* backend : kOnDevices) {
    ExpectOnRanks(
        2,
        [](Group group) -> absl::Status {
          SYNCLINE_ASSIGN_OR_RETURN(auto* const runtime, device::DeviceRuntime::Get());
          SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                    Reducer::Create(group, SmallModel(), OneBucket()));
          std::vector<std::shared_ptr<const Stream>> streams(3);
          for (auto& stream : streams) {
            SYNCLINE_ASSIGN_OR_RETURN(stream, runtime->MakeStream(TestDevice()));
          }
          for (int step = 0; step < 5; ++step) {
            std::vector<absl::Status> outcomes(3);
            std::vector<std::thread> threads;
            for (int64_t i : {0, 1, 2}) {
              threads.emplace_back([&, i] {
                const StreamScope scope(*streams[i]);
                outcomes[i] = Copy(*reducer, i, static_cast<float>(i + 2 * group->rank() + step));
              });
            }
            for (std::thread& thread : threads) thread.join();
            for (const absl::Status& outcome : outcomes) SYNCLINE_RETURN_IF_ERROR(outcome);
            SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
            SYNCLINE_RETURN_IF_ERROR(AllHold(*reducer, static_cast<float>(1 + step)));
          }
          return absl::OkStatus();
        },
        backend);
  }
  Delay(0);
}

TEST(ReducerDeviceTest, ABucketIsPackedInOneLaunch) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  ExpectOnRanks(
      1,
      [](Group group) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                  Reducer::Create(group, SmallModel(), OneBucket()));
        SYNCLINE_RETURN_IF_ERROR(CopyAll(*reducer, 1));
        SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
        const auto& fake = device::FakeCuda::Get();
        const auto launches = [&] { return fake.calls("cuLaunchKernel"); };
        const int64_t before = launches(), copies = fake.calls("cuMemcpyAsync");
        SYNCLINE_RETURN_IF_ERROR(CopyAll(*reducer, 2));
        EXPECT_TRUE_OR_RETURN(launches() == before + 1);
        EXPECT_TRUE_OR_RETURN(fake.calls("cuMemcpyAsync") == copies + 3);  // Placed's.
        SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
        return AllHold(*reducer, 2);
      },
      "nccl@cuda");
}

TEST(ReducerDeviceTest, AValueThatNobodyKeepsIsMovedAtOnce) {
  ExpectOnRanks(
      1,
      [](Group group) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(auto* const runtime, device::DeviceRuntime::Get());
        SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                  Reducer::Create(group, SmallModel(), OneBucket()));
        SYNCLINE_ASSIGN_OR_RETURN(const auto stream, runtime->MakeStream(TestDevice()));
        const StreamScope scope(*stream);
        Delay(1000);
        Reducer::Step local;
        local.sync = Reducer::Sync::kNone;
        for (int step = 0; step < 6; ++step) {
          if (step % 2 == 0) SYNCLINE_RETURN_IF_ERROR(reducer->BeginStep(local));
          for (int64_t i : {2, 1, 0}) {
            std::vector<float> values(reducer->gradient(i)->numel(), static_cast<float>(i + step));
            SYNCLINE_ASSIGN_OR_RETURN(const Tensor owned, Placed(Tensor::Of(values)));
            const Tensor value(owned.data(), owned.dtype(), owned.shape(), {}, owned.device());
            SYNCLINE_RETURN_IF_ERROR(reducer->CopyReady(i, value));
            // The program uses its memory again, behind the call.
            SYNCLINE_RETURN_IF_ERROR(runtime->Fill(value.data(), 0xff, value.nbytes(), *stream));
            SYNCLINE_RETURN_IF_ERROR(runtime->Synchronize(*stream, Deadline(absl::Minutes(1))));
          }
          SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
          const float expected = static_cast<float>(step % 2 == 0 ? step : 2 * step - 1);
          SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, 0, expected));
        }
        Delay(0);
        return absl::OkStatus();
      },
      "nccl@cuda");
}

TEST(ReducerDeviceTest, TimesOfBucketsAreKnownOnceTheDeviceHasEndedThem) {
  ExpectOnRanks(
      2,
      [](Group group) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                  Reducer::Create(group, SmallModel(), SmallOptions()));
        SYNCLINE_RETURN_IF_ERROR(CopyAll(*reducer, 1));
        SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
        const Deadline deadline(absl::Minutes(1));
        const auto is_known = [&] {
          const std::vector<int64_t> end = reducer->stats().end;
          return std::count(end.begin(), end.end(), 0) == 0;
        };
        while (!is_known() && !deadline.Expired()) std::this_thread::yield();
        EXPECT_TRUE_OR_RETURN(is_known());
        EXPECT_TRUE_OR_RETURN(reducer->stats().communication_time() > 0);
        return absl::OkStatus();
      },
      "nccl@cuda");
}

TEST(ReducerDeviceTest, OneReducerHasOneDeviceAndNoSparseGradientsThere) {
  ExpectOnRanks(
      2,
      [](Group group) -> absl::Status {
        std::vector<Tensor> parameters = SmallModel();
        parameters[1] = Tensor(nullptr, DType::kFloat32, {3}, {}, {DeviceType::kCuda, 7});
        const absl::Status mixed = Reducer::Create(group, parameters, SmallOptions()).status();
        EXPECT_EQ(KindOf(mixed), ErrorKind::kArgument);
        EXPECT_THAT(Message(mixed), HasSubstr("'b' (index 1) on cuda:7: a reducer averages"));
        Reducer::Options options = SmallOptions();
        options.sparse = {0};
        const absl::Status sparse = Reducer::Create(group, SmallModel(), options).status();
        EXPECT_EQ(KindOf(sparse), ErrorKind::kUnsupported);
        EXPECT_THAT(Message(sparse), HasSubstr("sparse gradients, such as that of 'w'"));
        return group->status();
      },
      "auto@cuda");
}

TEST(ReducerDeviceTest, AStepThatIsCapturedIsRefusedAndTheNextOneWorks) {
  ExpectOnRanks(
      1,
      [](Group group) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(auto* const runtime, device::DeviceRuntime::Get());
        SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                  Reducer::Create(group, SmallModel(), OneBucket()));
        SYNCLINE_ASSIGN_OR_RETURN(const Tensor value,
                                  Placed(Tensor::Zeros(DType::kFloat32, {2, 3})));
        SYNCLINE_ASSIGN_OR_RETURN(const auto stream, runtime->MakeStream(TestDevice()));
        const auto& fake = device::FakeCuda::Get();
        const auto handle = static_cast<device::CUstream>(stream->handle);
        {
          const device::DeviceRuntime::ContextScope context(*runtime, TestDevice());
          const StreamScope scope(*stream);
          EXPECT_TRUE_OR_RETURN(
              fake.Driver<device::CUresult(device::CUstream, device::CUstreamCaptureMode)>(
                  "cuStreamBeginCapture_v2")(handle, device::CU_STREAM_CAPTURE_MODE_RELAXED) == 0);
          for (const absl::Status& refused : {reducer->BeginStep({}), reducer->CopyReady(0, value),
                                              reducer->MarkReady(0), reducer->Finish()}) {
            EXPECT_EQ(KindOf(refused), ErrorKind::kUnsupported);
            EXPECT_THAT(Message(refused), HasSubstr("cannot be captured into a graph"));
          }
          device::CUgraph graph = nullptr;
          EXPECT_TRUE_OR_RETURN(fake.Driver<device::CUresult(device::CUstream, device::CUgraph*)>(
                                    "cuStreamEndCapture")(handle, &graph) == 0);
          fake.Driver<device::CUresult(device::CUgraph)>("cuGraphDestroy")(graph);
        }
        SYNCLINE_RETURN_IF_ERROR(CopyAll(*reducer, 1));
        SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
        return AllHold(*reducer, 1);
      },
      "nccl@cuda");
}

// In a group of devices alone no rank waits to hear what the others lack.
TEST(ReducerDeviceTest, ARankWithoutAGradientEndsAGroupOfDevicesAlone) {
  const auto statuses = OnRanks(
      2,
      [](Group group) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                  Reducer::Create(group, SmallModel(), SmallOptions()));
        SYNCLINE_RETURN_IF_ERROR(CopyAll(*reducer, 0));
        SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
        absl::Status failure;
        while (failure.ok()) {
          for (int64_t i : {2, 0}) failure.Update(Copy(*reducer, i, 1));
          if (group->rank() == 0) failure.Update(Copy(*reducer, 1, 1));
          failure.Update(reducer->Finish());
        }
        EXPECT_FALSE(group->status().ok());
        return failure;
      },
      "nccl@cuda");
  EXPECT_EQ(KindOf(statuses[1]), ErrorKind::kArgument) << statuses[1];
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(Message(status), HasSubstr("rank 1 produced no gradient for 'b' (index 1); give"));
  }
}

// `fail` makes the device of rank 0 fail; its step, and those of rank 1, end in an error.
void ExpectFailure(const std::string& backend, const std::function<void()>& fail,
                   const std::string& function) {
  Countdown ready(2), failed(1);
  const auto statuses = OnRanks(
      2,
      [&](Group group) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                  Reducer::Create(group, SmallModel(), OneBucket()));
        SYNCLINE_RETURN_IF_ERROR(CopyAll(*reducer, 0));
        SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
        SYNCLINE_RETURN_IF_ERROR(AllHold(*reducer, 0));
        // The failing call is the next one of any rank: rank 1 makes none from here on.
        ready.StepAndWait();
        if (group->rank() == 1) failed.Wait();
        // The device moves the values of the test, too: they are made before.
        std::vector<Tensor> values;
        for (int64_t i : {0, 1, 2}) {
          std::vector<float> ones(reducer->gradient(i)->numel(), 1);
          SYNCLINE_ASSIGN_OR_RETURN(values.emplace_back(), Placed(Tensor::Of(ones)));
        }
        if (group->rank() == 0) fail();
        absl::Status failure;
        while (failure.ok()) {
          for (int64_t i : {0, 1, 2}) failure.Update(reducer->CopyReady(i, values[i]));
          failure.Update(reducer->Finish());
        }
        // Every later call reports the failure again.
        EXPECT_FALSE(reducer->Finish().ok());
        EXPECT_FALSE(group->status().ok());
        failed.Step();
        return failure;
      },
      backend);
  EXPECT_THAT(Message(statuses[0]), AllOf(HasSubstr(function), HasSubstr("cuda:0"))) << backend;
  EXPECT_FALSE(statuses[1].ok()) << backend;
}

TEST(ReducerDeviceTest, AFailureOfTheDeviceNamesItAndTheFunctionAndEndsTheStepOfAllRanks) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  const auto& fake = device::FakeCuda::Get();
  for (const char* backend : kOnDevices) {
    ExpectFailure(backend, [&] { fake.fail_next("cuLaunchKernel", 1, 719); }, "cuLaunchKernel");
    ExpectFailure(backend, [&] { fake.fail_next("cuEventRecord", 2, 719); }, "cuEventRecord");
    ExpectFailure(backend, [&] { fake.break_device(0, 700); }, "CUDA_ERROR_ILLEGAL_ADDRESS");
    fake.break_device(0, 0);
    fake.fail_next("cuLaunchKernel", 0, 0);
    fake.fail_next("cuEventRecord", 0, 0);
  }
}

TEST(ReducerDeviceTest, WithoutMemoryForTheBucketsNoRankHasAReducer) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  const auto& fake = device::FakeCuda::Get();
  for (const char* backend : {"auto@cuda", "shm@cuda"}) {
    Countdown ready(1);
    const auto statuses = OnRanks(
        2,
        [&](Group group) -> absl::Status {
          if (group->rank() == 0) {
            // An allocation is tried again if there is memory that is being given back.
            device::TaskThread::Releases().AwaitIdle(Deadline(absl::Minutes(1)));
            fake.fail_next("cuMemAlloc_v2", 2, 2);
          } else {
            ready.Wait();
          }
          std::thread opener;
          if (group->rank() == 0) {
            // Rank 1 comes when rank 0's allocation has failed.
            opener = std::thread([&, before = fake.calls("cuMemAlloc_v2")] {
              while (fake.calls("cuMemAlloc_v2") < before + 2) std::this_thread::yield();
              ready.Step();
            });
          }
          const absl::Status status = Reducer::Create(group, SmallModel(), SmallOptions()).status();
          if (opener.joinable()) opener.join();
          return status;
        },
        backend);
    EXPECT_THAT(Message(statuses[0]), HasSubstr("cuMemAlloc")) << backend;
    EXPECT_EQ(KindOf(statuses[1]), ErrorKind::kMismatch) << backend;
    EXPECT_THAT(Message(statuses[1]), HasSubstr("rank 0 could not set up its reducer")) << backend;
  }
}

TEST(ReducerDeviceTest, AReducerMayGoWhileTheDeviceIsBusy) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  const auto& fake = device::FakeCuda::Get();
  const int64_t before = fake.Counts().device_allocations;
  for (const char* backend : {"auto@cuda", "nccl@cuda"}) {
    Countdown ready(2), gone(2);
    ExpectOnRanks(
        2,
        [&](Group group) -> absl::Status {
          SYNCLINE_ASSIGN_OR_RETURN(Reducers reducer,
                                    Reducer::Create(group, SmallModel(), SmallOptions()));
          for (int step = 0; step < 2; ++step) {
            SYNCLINE_RETURN_IF_ERROR(CopyAll(*reducer, 0));
            SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
            SYNCLINE_RETURN_IF_ERROR(AllHold(*reducer, 0));
          }
          ready.StepAndWait();
          {
            const device::HeldStreams held(group->rank());
            SYNCLINE_RETURN_IF_ERROR(CopyAll(*reducer, 1));
            SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
            for (int64_t i : {2, 1}) SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, i, 1));
            reducer = nullptr;
            gone.StepAndWait();
          }
          SYNCLINE_ASSIGN_OR_RETURN(auto* const runtime, device::DeviceRuntime::Get());
          return runtime->Synchronize(CurrentStream(TestDevice()), Deadline(absl::Minutes(1)));
        },
        backend);
  }
  const Deadline deadline(absl::Minutes(1));
  const auto all_back = [&] { return fake.Counts().device_allocations <= before; };
  while (!all_back() && !deadline.Expired()) std::this_thread::yield();
  EXPECT_TRUE(all_back());
  // Memory that had gone too early would have broken the device.
  for (const int device : {0, 1}) {
    auto* const runtime = device::DeviceRuntime::Get().value();
    EXPECT_TRUE(
        runtime->Synchronize({{DeviceType::kCuda, device}}, Deadline(absl::Minutes(1))).ok());
  }
}

// As all tests of this folder rely on: a host that touched an element would be found out.
TEST(ReducerDeviceDeathTest, TheHostCannotTouchWhatIsOnADevice) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const Tensor tensor = EmptyOnDevice({DeviceType::kCuda, 1}, DType::kFloat32, {10}).value();
        tensor.data_as<float>()[3] = 1;
      },
      "the host touches byte 12 of 40 of memory of device 1");
}

}  // namespace
}  // namespace syncline
