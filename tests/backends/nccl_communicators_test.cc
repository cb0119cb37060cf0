// How communicators of NCCL are made with a group, split off each other, and left. Ranks are
// threads.
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/nccl/communicator.h"
#include "core/device/device_runtime.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend_registry.h"
#include "syncline/device_memory.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "syncline/stream.h"
#include "syncline/subgroups.h"
#include "syncline/world.h"
#include "tests/backends/fake_nccl_control.h"
#include "tests/support/backend_config.h"
#include "tests/support/device_calls.h"
#include "tests/support/ranks.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

using device::HeldStreams;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

device::DeviceRuntime& Runtime() { return **device::DeviceRuntime::Get(); }

// As far as there are enough.
Device DeviceOf(int rank) { return {DeviceType::kCuda, rank % Runtime().device_count()}; }

std::string Message(const absl::Status& status) { return std::string(status.message()); }

void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

// A number of calls, which only the stand-in for NCCL counts: elsewhere each is as expected.
struct Count {
  bool operator==(int expected) const {
    return !device::DevicesAreSimulated() || number == expected;
  }
  bool operator>(int expected) const { return number > expected; }
  friend std::ostream& operator<<(std::ostream& os, const Count& count) {
    return os << count.number;
  }

  int number;
};

// How often this process has called a function of NCCL since it was made.
class CallsOf {
 public:
  explicit CallsOf(const char* function) : function_(function), before_(Calls()) {}
  Count count() const { return {Calls() - before_}; }

 private:
  int Calls() const { return device::DevicesAreSimulated() ? FakeNccl::Get().calls(function_) : 0; }

  const char* const function_;
  const int before_;
};

// Whether all communicators of this process have ended, as far as somebody counts them.
bool HaveAllEnded() {
  return !device::DevicesAreSimulated() || FakeNccl::Get().live_communicators() == 0;
}

bool Await(const std::function<bool()>& holds) {
  const Deadline deadline(kTimeout);
  while (!holds()) {
    if (deadline.Expired()) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

// ---- Backends ----

BackendConfig ConfigOf(std::shared_ptr<Store> store, int rank, int size,
                       std::optional<Device> device = {}) {
  BackendConfig config = OnLoopback(std::move(store), rank, size, kTimeout);
  config.device = device;
  return config;
}

// One rank of two that rank 0 broadcasts to.
class Broadcast {
 public:
  Broadcast(const std::shared_ptr<Store>& store, int rank)
      : backend_(BackendRegistry::Make("nccl", ConfigOf(store, rank, 2)).value()),
        stream_(Runtime().MakeStream(DeviceOf(rank)).value()),
        host_(Bytes(DType::kInt32, 1000, rank)),
        tensor_(EmptyOnDevice(DeviceOf(rank), DType::kInt32, {1000}).value()) {
    ExpectOk(Runtime().Copy(tensor_.data(), host_.data(), host_.nbytes(), *stream_));
  }

  Backend& backend() { return *backend_; }

  std::shared_ptr<Completion::Handle> Start(int number) {
    CallerStream caller = {*stream_, Runtime().Record(*stream_).value(), {}};
    CallContext context;
    context.sequence = static_cast<uint64_t>(number);
    context.deadline = Deadline(kTimeout);
    context.caller = &caller;
    const Collective call = Collective::Broadcast(tensor_, 0);
    const auto completion = backend_->Run({call}, context);
    EXPECT_TRUE(completion.ok()) << completion.status();
    return completion.ok() ? completion->handle() : nullptr;
  }
  absl::Status Run(int number) { return Start(number)->Wait(Deadline(kTimeout)).status(); }

  bool HasArrived() {
    // Before the copy, too: see DeviceTensors::CopyBack.
    ExpectOk(Runtime().Synchronize(*stream_, Deadline(kTimeout)));
    ExpectOk(Runtime().Copy(host_.data(), tensor_.data(), host_.nbytes(), *stream_));
    ExpectOk(Runtime().Synchronize(*stream_, Deadline(kTimeout)));
    return SameBytes(host_, Bytes(DType::kInt32, 1000, 0));
  }

 private:
  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<const Stream> stream_;
  const Tensor host_;
  const Tensor tensor_;
};

void RunTwo(const std::function<void(Broadcast& rank, int number)>& body) {
  const auto store = std::make_shared<HashStore>();
  for (const absl::Status& status : RunRanks(2, [&](int rank) {
         Broadcast joined(store, rank);
         body(joined, rank);
         return absl::OkStatus();
       })) {
    ExpectOk(status);
  }
  EXPECT_TRUE(Await(&HaveAllEnded));
}

TEST(NcclLeaveTest, WhatARankHasHandedOverArrivesAfterItHasLeft) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  const CallsOf finalized("ncclCommFinalize"), aborted("ncclCommAbort");
  Countdown has_called(1);
  RunTwo([&](Broadcast& joined, int rank) {
    ExpectOk(joined.Run(0));  // Makes the communicator.
    if (rank == 0) {
      has_called.Wait();
      ExpectOk(joined.Run(1));
      joined.backend().Leave(BackendError("it is done"), Deadline(kTimeout));
      return;
    }
    std::shared_ptr<Completion::Handle> handle;
    {
      // It takes nothing before the other one leaves.
      const HeldStreams held(1);
      handle = joined.Start(1);
      has_called.Step();
      EXPECT_TRUE(Await([&] { return finalized.count() > 0; }));
      EXPECT_EQ(aborted.count(), 0);
    }
    ExpectOk(handle->Wait(Deadline(kTimeout)).status());
    EXPECT_TRUE(joined.HasArrived());
  });
  EXPECT_EQ(finalized.count(), 2);
  EXPECT_EQ(aborted.count(), 0);
}

TEST(NcclLeaveTest, APeerThatTakesNothingHoldsUpARankForSomeSecondsAtMost) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  const CallsOf aborted("ncclCommAbort");
  Countdown has_called(1), has_left(1);
  RunTwo([&](Broadcast& joined, int rank) {
    ExpectOk(joined.Run(0));
    if (rank == 0) {
      has_called.Wait();
      ExpectOk(joined.Run(1));
      const absl::Time begin = absl::Now();
      joined.backend().Leave(BackendError("it is done"), Deadline(kTimeout));
      EXPECT_LT(absl::Now() - begin, nccl::Communicators::kLeaveTime + absl::Seconds(5));
      EXPECT_TRUE(Await([&] { return aborted.count() == 1; }));
      has_left.Step();
      return;
    }
    const HeldStreams held(1);
    joined.Start(1);
    has_called.Step();
    has_left.Wait();
    joined.backend().Abort(BackendError("it has had enough"));
  });
}

TEST(NcclLeaveTest, WhatCannotBeFinalizedIsAborted) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  for (const bool is_asynchronous : {false, true}) {
    const CallsOf aborted("ncclCommAbort"), destroyed("ncclCommDestroy");
    Countdown has_arrived(2);
    RunTwo([&](Broadcast& joined, int rank) {
      ExpectOk(joined.Run(0));
      has_arrived.StepAndWait();  // What an abort loses.
      if (rank == 1) return;
      if (is_asynchronous) {
        FakeNccl::Get().set_async_error(nullptr, 0, nccl::kNcclRemoteError);
      } else {
        FakeNccl::Get().fail_next("ncclCommFinalize", nccl::kNcclInternalError);
      }
      joined.backend().Leave(BackendError("it is done"), Deadline(kTimeout));
      EXPECT_EQ(aborted.count(), 1);
    });
    FakeNccl::Get().fail_next(nullptr, nccl::kNcclSuccess);
    EXPECT_EQ(aborted.count().number + destroyed.count().number, 2);
  }
}

TEST(NcclLeaveTest, AFailedGroupAbortsAtOnce) {
  const CallsOf finalized("ncclCommFinalize");
  Countdown has_received(2), has_failed(1);
  RunTwo([&](Broadcast& joined, int rank) {
    ExpectOk(joined.Run(0));
    has_received.StepAndWait();  // Before an abort takes it back.
    if (rank == 1) {
      // Its call is under way when it goes.
      joined.Start(1);
      joined.backend().Abort(BackendError("it has had enough"));
      has_failed.Step();
    }
    has_failed.Wait();
  });
  EXPECT_EQ(finalized.count(), 0);
}

// ---- Communicators that are made with the group ----

absl::Status SumOnDevice(ProcessGroup& group, const Device& device) {
  DeviceTensors tensors(device);
  const Tensor host = Tensor::Zeros(DType::kInt32, {5});
  for (int i = 0; i < 5; ++i) host.data_as<int32_t>()[i] = group.rank() + 1;
  SYNCLINE_ASSIGN_OR_RETURN(const Tensor on_device, tensors.Of(host));
  const absl::Status called = group.AllReduce(on_device);
  SYNCLINE_RETURN_IF_ERROR(tensors.CopyBack());  // Until then the tensor is in use.
  SYNCLINE_RETURN_IF_ERROR(called);
  const int sum = group.size() * (group.size() + 1) / 2;
  if (host.data_as<int32_t>()[4] == sum) return absl::OkStatus();
  return BackendError("the sum is wrong");
}

class Worlds {
 public:
  using Body = std::function<absl::Status(World& world)>;
  using Options = std::function<WorldOptions(int rank, int size)>;

  static WorldOptions Eager(int rank, int size) {
    WorldOptions options;
    options.backend = "nccl";
    options.rank = rank;
    options.size = size;
    options.timeout = kTimeout;
    options.device_id = DeviceOf(rank);
    return options;
  }

  static std::vector<absl::Status> Run(int size, const Options& options, const Body& body) {
    const auto store = std::make_shared<HashStore>();
    const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
      WorldOptions own = options(rank, size);
      own.store = store;
      // Ranks that share a device would wait for each other on its default stream.
      SYNCLINE_ASSIGN_OR_RETURN(const auto stream, Runtime().MakeStream(DeviceOf(rank)));
      std::optional<StreamScope> scope;
      if (size > Runtime().device_count()) scope.emplace(*stream);
      SYNCLINE_ASSIGN_OR_RETURN(const auto world, World::Init(own));
      SYNCLINE_RETURN_IF_ERROR(body(*world));
      world->Close();
      return absl::OkStatus();
    });
    EXPECT_TRUE(Await(&HaveAllEnded));
    return statuses;
  }
  static void RunOk(int size, const Options& options, const Body& body) {
    for (const absl::Status& status : Run(size, options, body)) ExpectOk(status);
  }
};

TEST(NcclDeviceIdTest, TheCommunicatorIsMadeWithTheGroup) {
  for (const char* const backend : {"nccl", "auto", "cpu:gloo,cuda:nccl"}) {
    const CallsOf made("ncclCommInitRankConfig");
    const auto options = [&](int rank, int size) {
      WorldOptions eager = Worlds::Eager(rank, size);
      eager.backend = backend;
      return eager;
    };
    Countdown has_looked(3);
    Worlds::RunOk(3, options, [&](World& world) -> absl::Status {
      EXPECT_EQ(made.count(), 3) << backend;
      has_looked.StepAndWait();
      return SumOnDevice(*world.group(), DeviceOf(world.rank()));
    });
    EXPECT_EQ(made.count(), 3) << backend;
  }
}

TEST(NcclDeviceIdTest, ItIsGivenToAllRanksOrToNone) {
  const auto options = [](int rank, int size) {
    WorldOptions some = Worlds::Eager(rank, size);
    if (rank == 1) some.device_id = {};
    return some;
  };
  const auto statuses = Worlds::Run(3, options, [](World&) { return absl::OkStatus(); });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(Message(status), HasSubstr("rank 0 was given a device_id and rank 1 was not"));
    EXPECT_THAT(RanksOf(status), ElementsAre(0, 1));
  }
}

TEST(NcclDeviceIdTest, ADeviceThatIsNotThereIsAnErrorOfAllRanks) {
  const auto options = [](int rank, int size) {
    WorldOptions wrong = Worlds::Eager(rank, size);
    if (rank == 1) wrong.device_id = {DeviceType::kCuda, 64};
    return wrong;
  };
  for (const absl::Status& status :
       Worlds::Run(2, options, [](World&) { return absl::OkStatus(); })) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(Message(status), HasSubstr("device_id cuda:64 is none of the devices"));
  }
}

TEST(NcclDeviceIdTest, TheCpuIsRefused) {
  WorldOptions options = Worlds::Eager(0, 1);
  options.store = std::make_shared<HashStore>();
  options.device_id = Device();
  const absl::Status status = World::Init(options).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << status;
}

TEST(NcclDeviceIdTest, BackendsWithoutDevicesIgnoreIt) {
  const auto options = [](int rank, int size) {
    WorldOptions gloo = Worlds::Eager(rank, size);
    gloo.backend = "gloo";
    return gloo;
  };
  const CallsOf made("ncclCommInitRankConfig");
  Worlds::RunOk(2, options, [](World& world) { return world.group()->Barrier(); });
  EXPECT_EQ(made.count(), 0);
}

TEST(NcclDeviceIdTest, TwoRanksOnOneDeviceAreAnErrorOfAllRanks) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  const auto options = [](int rank, int size) {
    WorldOptions same = Worlds::Eager(rank, size);
    same.device_id = DeviceOf(rank / 2);
    return same;
  };
  for (const absl::Status& status :
       Worlds::Run(3, options, [](World&) { return absl::OkStatus(); })) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(Message(status), HasSubstr("ranks 0 and 1 are on one device"));
  }
}

TEST(NcclDeviceIdTest, WhereOneRankFailsAllDo) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  FakeNccl::Get().fail_next("ncclCommInitRankConfig", nccl::kNcclSystemError);
  for (const absl::Status& status :
       Worlds::Run(3, &Worlds::Eager, [](World&) { return absl::OkStatus(); })) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(Message(status), AllOf(HasSubstr("could not join group 'default'"),
                                       HasSubstr("ncclCommInitRankConfig failed")));
  }
}

// ---- Communicators that are split off ----

TEST(NcclSplitTest, NewGroupsGetTheirCommunicatorsFromTheWorlds) {
  const CallsOf made("ncclCommInitRankConfig"), split("ncclCommSplit");
  Worlds::RunOk(3, &Worlds::Eager, [](World& world) -> absl::Status {
    const Device device = DeviceOf(world.rank());
    SYNCLINE_ASSIGN_OR_RETURN(const auto group, world.NewGroup({2, 0}));
    EXPECT_EQ(group == nullptr, world.rank() == 1);
    if (group != nullptr) {
      EXPECT_EQ(group->rank(), world.rank() == 2 ? 0 : 1);
      SYNCLINE_RETURN_IF_ERROR(SumOnDevice(*group, device));
      // In the order of the ranks that the group has.
      DeviceTensors tensors(device);
      const Tensor host = Tensor::Zeros(DType::kInt32, {1});
      host.data_as<int32_t>()[0] = 10 + group->rank();
      SYNCLINE_ASSIGN_OR_RETURN(const Tensor tensor, tensors.Of(host));
      SYNCLINE_RETURN_IF_ERROR(group->Broadcast(tensor, 0));
      SYNCLINE_RETURN_IF_ERROR(tensors.CopyBack());
      EXPECT_EQ(host.data_as<int32_t>()[0], 10);
      // A group of a group, too.
      SYNCLINE_ASSIGN_OR_RETURN(const auto alone, Split(*group, {{1}, {0}}));
      SYNCLINE_RETURN_IF_ERROR(SumOnDevice(*alone, device));
      alone->Close();
      group->Close();
    }
    return SumOnDevice(*world.group(), device);
  });
  EXPECT_EQ(split.count(), 3 + 2);
  EXPECT_EQ(made.count(), 3);
}

TEST(NcclSplitTest, SplitGivesEachPartItsCommunicator) {
  const CallsOf made("ncclCommInitRankConfig"), split("ncclCommSplit");
  Worlds::RunOk(4, &Worlds::Eager, [](World& world) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto part, Split(*world.group(), {{3, 1}, {0}}));
    EXPECT_EQ(part == nullptr, world.rank() == 2);
    if (part != nullptr) {
      SYNCLINE_RETURN_IF_ERROR(SumOnDevice(*part, DeviceOf(world.rank())));
      part->Close();
    }
    return SumOnDevice(*world.group(), DeviceOf(world.rank()));
  });
  EXPECT_EQ(split.count(), 4);
  EXPECT_EQ(made.count(), 4);
}

TEST(NcclSplitTest, OthersThanTheWorldsBackendAndLocalGroupsAreMadeAlone) {
  const CallsOf made("ncclCommInitRankConfig"), split("ncclCommSplit");
  Worlds::RunOk(3, &Worlds::Eager, [](World& world) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto gloo, world.NewGroup({0, 1}, "gloo"));
    if (gloo != nullptr) SYNCLINE_RETURN_IF_ERROR(gloo->Barrier());
    if (gloo != nullptr) gloo->Close();
    if (world.rank() == 2) return absl::OkStatus();
    SYNCLINE_ASSIGN_OR_RETURN(const auto local, world.NewLocalGroup({0, 1}));
    SYNCLINE_RETURN_IF_ERROR(SumOnDevice(*local, DeviceOf(world.rank())));
    local->Close();
    return absl::OkStatus();
  });
  EXPECT_EQ(split.count(), 0);
  EXPECT_EQ(made.count(), 3 + 2);
}

TEST(NcclSplitTest, WithoutADeviceNothingIsSplit) {
  const CallsOf split("ncclCommSplit");
  const auto options = [](int rank, int size) {
    WorldOptions lazy = Worlds::Eager(rank, size);
    lazy.device_id = {};
    return lazy;
  };
  Worlds::RunOk(2, options, [](World& world) -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(SumOnDevice(*world.group(), DeviceOf(world.rank())));
    SYNCLINE_ASSIGN_OR_RETURN(const auto group, world.NewGroup({0, 1}));
    SYNCLINE_RETURN_IF_ERROR(SumOnDevice(*group, DeviceOf(world.rank())));
    group->Close();
    return absl::OkStatus();
  });
  EXPECT_EQ(split.count(), 0);
}

TEST(NcclSplitTest, WhereOneRankCannotSplitTheGroupGetsItsOwnCommunicator) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  const CallsOf made("ncclCommInitRankConfig");
  FakeNccl::Get().fail_next("ncclCommSplit", nccl::kNcclInternalError);
  Worlds::RunOk(3, &Worlds::Eager, [](World& world) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto group, world.NewGroup({0, 1, 2}));
    SYNCLINE_RETURN_IF_ERROR(SumOnDevice(*group, DeviceOf(world.rank())));
    // The world's has failed, on all ranks.
    EXPECT_THAT(Message(SumOnDevice(*world.group(), DeviceOf(world.rank()))),
                HasSubstr("ncclCommSplit failed"));
    group->Close();
    return absl::OkStatus();
  });
  EXPECT_EQ(made.count(), 3 + 3);
}

TEST(NcclSplitTest, ARankThatDoesNotCallIsNamed) {
  Countdown has_failed(2);
  const auto statuses = Worlds::Run(3, &Worlds::Eager, [&](World& world) -> absl::Status {
    if (world.rank() == 2) {
      has_failed.Wait();
      return absl::OkStatus();
    }
    const auto group = world.NewGroup({0, 1}, {}, absl::Seconds(3));
    has_failed.Step();
    EXPECT_EQ(KindOf(group.status()), ErrorKind::kTimeout) << group.status();
    EXPECT_THAT(RanksOf(group.status()), ElementsAre(2));
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) ExpectOk(status);
}

TEST(NcclSplitTest, ACallOfTheParentIsNoPartOfASplit) {
  const auto options = [](int rank, int size) { return Worlds::Eager(rank, size); };
  std::vector<absl::Status> statuses = Worlds::Run(2, options, [](World& world) -> absl::Status {
    // The ranks meet in the store first, and in the group then.
    std::thread other;
    absl::Status barrier;
    SYNCLINE_ASSIGN_OR_RETURN(const auto part, Split(*world.group(), {{0, 1}}));
    SYNCLINE_RETURN_IF_ERROR(world.group()->Barrier());
    SYNCLINE_RETURN_IF_ERROR(part->Barrier());
    part->Close();
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) ExpectOk(status);
}

// ---- Shrinking ----

TEST(NcclShrinkTest, SurvivorsGoOnWithoutTheRankThatLeftInTheMiddleOfACall) {
  for (const bool is_eager : {false, true}) {
    const auto options = [&](int rank, int size) {
      WorldOptions own = Worlds::Eager(rank, size);
      if (!is_eager) own.device_id = {};
      return own;
    };
    Countdown have_met(3);
    Worlds::RunOk(3, options, [&](World& world) -> absl::Status {
      const Device device = DeviceOf(world.rank());
      SYNCLINE_RETURN_IF_ERROR(SumOnDevice(*world.group(), device));
      // The end of a rank's own part does not say that the other ranks have theirs.
      SYNCLINE_RETURN_IF_ERROR(world.group()->Barrier());
      have_met.StepAndWait();  // Who leaves would fail the barrier for who is still in it.
      if (world.rank() == 2) {
        DeviceTensors tensors(device);
        SYNCLINE_ASSIGN_OR_RETURN(const Tensor tensor,
                                  tensors.Of(Tensor::Zeros(DType::kInt32, {5})));
        {
          std::optional<HeldStreams> held;
          if (device::DevicesAreSimulated()) held.emplace(2);
          const auto work = world.group()->AllReduceAsync(tensor);
          world.group()->Abort("it has had enough");
        }
        return tensors.CopyBack();
      }
      // It may show at a later call: who waits for a stream learns nothing else.
      EXPECT_TRUE(Await([&] {
        SumOnDevice(*world.group(), device).IgnoreError();
        return !world.group()->status().ok();
      }));
      SYNCLINE_ASSIGN_OR_RETURN(const auto survivors, Shrink(*world.group(), {2}));
      EXPECT_EQ(survivors->size(), 2);
      SYNCLINE_RETURN_IF_ERROR(SumOnDevice(*survivors, device));
      survivors->Close();
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace syncline
