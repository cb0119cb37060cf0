// Reducers of several ranks on simulated devices: streams, lifetimes, failures.
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/device/device_runtime.h"
#include "core/device/device_tensor.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "syncline/process_group.h"
#include "syncline/reducer.h"
#include "syncline/status.h"
#include "syncline/stream.h"
#include "syncline/tensor.h"
#include "tests/ddp/reducer_ranks.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

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
  for (const auto unused : {Reducer::Unused::kRefused, Reducer::Unused::kRecorded}) {
    ExpectNoHostWaits("auto@cuda", unused);
    ExpectNoHostWaits("nccl@cuda", unused);
  }
  // The flags go by the backend of the host.
  ExpectNoHostWaits("auto@cuda", Reducer::Unused::kFound);
}

// Each thread has a stream of its own, which is slow; what it lets go is kept.
TEST(ReducerDeviceTest, GradientsOfABucketComeOnSeveralStreamsAndTheirValuesAreLetGo) {
  device::FakeCuda::Get().delay_us(2000);
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
  device::FakeCuda::Get().delay_us(0);
}

TEST(ReducerDeviceTest, ABucketIsPackedInOneLaunch) {
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

}  // namespace
}  // namespace syncline
