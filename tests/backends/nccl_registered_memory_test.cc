// Memory that NCCL has allocated, and what communicators register of it. Ranks are threads on
// simulated devices; the stand-in for NCCL counts what is registered and allocated.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/nccl/nccl_library.h"
#include "core/device/device_runtime.h"
#include "core/device/task_thread.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/device_memory.h"
#include "syncline/hash_store.h"
#include "syncline/prefix_store.h"
#include "syncline/process_group.h"
#include "syncline/status.h"
#include "syncline/stream.h"
#include "tests/backends/fake_nccl_control.h"
#include "tests/support/ranks.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kCount = 1000;

device::DeviceRuntime& Runtime() { return **device::DeviceRuntime::Get(); }

Device DeviceOf(int index) { return {DeviceType::kCuda, index}; }

void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

Tensor Registered(int device, int64_t count = kCount) {
  return EmptyOnDevice(DeviceOf(device), DType::kInt32, {count}, DeviceMemory::kRegistered).value();
}

int Registrations() { return FakeNccl::Get().live_registrations(); }
int Allocations() { return FakeNccl::Get().live_allocations(); }

bool Await(const std::function<bool()>& holds) {
  const Deadline deadline(kTimeout);
  while (!holds()) {
    if (deadline.Expired()) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

// A rank of two, on the device of its number.
class Member {
 public:
  Member(const std::shared_ptr<Store>& store, int rank, const std::string& name = "default")
      : rank_(rank), stream_(Runtime().MakeStream(DeviceOf(rank)).value()) {
    ProcessGroup::Options options;
    options.store = std::make_shared<PrefixStore>(name, store);
    options.backend = "cuda:nccl";
    options.rank = rank;
    options.size = 2;
    options.name = name;
    options.timeout = kTimeout;
    group_ = ProcessGroup::Create(options).value();
  }

  ~Member() { EndGroup(); }

  ProcessGroup& group() { return *group_; }
  // In order: the other rank may still be in the last call.
  void EndGroup() {
    if (group_ != nullptr) group_->Close(kTimeout);
    group_ = nullptr;
  }

  // Broadcasts what rank 0 has written, and compares.
  void Broadcast(const Tensor& tensor, int seed) {
    const Tensor host = Bytes(tensor.dtype(), tensor.numel(), seed + rank_);
    const StreamScope scope(*stream_);
    ExpectOk(Runtime().Copy(tensor.data(), host.data(), host.nbytes(), *stream_));
    ExpectOk(group_->Broadcast(tensor, 0));
    ExpectOk(Runtime().Copy(host.data(), tensor.data(), host.nbytes(), *stream_));
    ExpectOk(Runtime().Synchronize(*stream_, Deadline(kTimeout)));
    EXPECT_TRUE(SameBytes(host, Bytes(tensor.dtype(), tensor.numel(), seed)));
  }

 private:
  const int rank_;
  const std::shared_ptr<const Stream> stream_;
  std::shared_ptr<ProcessGroup> group_;
};

void RunTwo(const std::function<void(const std::shared_ptr<Store>& store, int rank)>& body) {
  const auto store = std::make_shared<HashStore>();
  for (const absl::Status& status : RunRanks(2, [&](int rank) {
         body(store, rank);
         return absl::OkStatus();
       })) {
    ExpectOk(status);
  }
  EXPECT_TRUE(Await([] { return FakeNccl::Get().live_communicators() == 0; }));
  EXPECT_TRUE(Await([] { return Registrations() == 0 && Allocations() == 0; }));
}

class NcclRegisteredMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override { SYNCLINE_REQUIRE_SIMULATED_DEVICES(); }
};

TEST_F(NcclRegisteredMemoryTest, ACommunicatorRegistersMemoryOnceAndLetsGoOfItWithTheTensor) {
  Countdown both_called(2), both_looked(2), both_saw_none(2);
  RunTwo([&](const std::shared_ptr<Store>& store, int rank) {
    Member member(store, rank);
    {
      const Tensor whole = Registered(rank);
      member.Broadcast(whole, 1);
      member.Broadcast(whole, 3);
      // Another part of it is the same memory.
      member.Broadcast(Tensor(whole.data_as<char>() + 400, DType::kInt32, {10}, {}, whole.device(),
                              whole.owner()),
                       5);
      both_called.StepAndWait();
      EXPECT_EQ(Registrations(), 2);
      EXPECT_EQ(Allocations(), 2);
      both_looked.StepAndWait();
    }
    // While the group goes on. The group lets go of its last tensor when that call has ended.
    EXPECT_TRUE(Await([] { return Registrations() == 0 && Allocations() == 0; }));
    both_saw_none.StepAndWait();
    member.Broadcast(Registered(rank), 7);
  });
}

TEST_F(NcclRegisteredMemoryTest, EachGroupRegistersItAndItOutlivesThem) {
  Countdown both_called(2), both_looked(2), both_ended(2), both_looked_again(2);
  const int before = FakeNccl::Get().calls("ncclCommDeregister");
  RunTwo([&](const std::shared_ptr<Store>& store, int rank) {
    const Tensor tensor = Registered(rank);
    {
      Member first(store, rank, "first"), second(store, rank, "second");
      first.Broadcast(tensor, 1);
      second.Broadcast(tensor, 3);
      both_called.StepAndWait();
      EXPECT_EQ(Registrations(), 4);
      both_looked.StepAndWait();
      first.EndGroup();
      second.Broadcast(tensor, 5);
    }
    both_ended.StepAndWait();
    // Before the communicators ended, each by the rank that left.
    EXPECT_EQ(FakeNccl::Get().calls("ncclCommDeregister"), before + 4);
    EXPECT_TRUE(Await([] { return Registrations() == 0; }));
    EXPECT_EQ(Allocations(), 2);
    both_looked_again.StepAndWait();
    Member third(store, rank, "third");
    third.Broadcast(tensor, 7);
  });
}

TEST_F(NcclRegisteredMemoryTest, AMessageUsesTheCommunicatorOfItsChannel) {
  Countdown both_called(2), both_looked(2);
  RunTwo([&](const std::shared_ptr<Store>& store, int rank) {
    Member member(store, rank);
    const Tensor tensor = Registered(rank);
    ExpectOk(rank == 0 ? member.group().Send(tensor, 1) : member.group().Recv(tensor, 0).status());
    both_called.StepAndWait();
    EXPECT_EQ(Registrations(), 2);
    both_looked.StepAndWait();
  });
}

TEST_F(NcclRegisteredMemoryTest, WhatIsFreedAfterAnAbortIsNotDeregistered) {
  Countdown both_called(2), both_ended(2);
  std::vector<std::optional<Tensor>> tensors(2);
  std::atomic<int> before{0};
  RunTwo([&](const std::shared_ptr<Store>& store, int rank) {
    tensors[rank] = Registered(rank);
    Member member(store, rank);
    member.Broadcast(*tensors[rank], 1);
    both_called.StepAndWait();
    member.group().Abort("it has had enough");
    EXPECT_TRUE(Await([] { return FakeNccl::Get().live_communicators() == 0; }));
    before = FakeNccl::Get().calls("ncclCommDeregister");
    both_ended.StepAndWait();
    tensors[rank].reset();
  });
  EXPECT_EQ(FakeNccl::Get().calls("ncclCommDeregister"), before);
}

TEST_F(NcclRegisteredMemoryTest, ARefusalOfNcclIsNoErrorAndIsNotRepeated) {
  const int before = FakeNccl::Get().calls("ncclCommRegister");
  FakeNccl::Get().fail_next("ncclCommRegister", nccl::kNcclSystemError);
  Countdown both_called(2), both_looked(2);
  RunTwo([&](const std::shared_ptr<Store>& store, int rank) {
    Member member(store, rank);
    const Tensor tensor = Registered(rank);
    member.Broadcast(tensor, 1);
    member.Broadcast(tensor, 3);
    both_called.StepAndWait();
    EXPECT_EQ(Registrations(), 1);  // Of the rank that was not refused.
    both_looked.StepAndWait();
  });
  EXPECT_EQ(FakeNccl::Get().calls("ncclCommRegister"), before + 2);
}

// NCCL allows one thread at a time in the functions of a communicator.
TEST_F(NcclRegisteredMemoryTest, MemoryThatIsFreedDuringACallIsDeregisteredAfterIt) {
  const int before = FakeNccl::Get().calls("ncclCommDeregister");
  Countdown both_called(2), are_held(2), may_go_on(1);
  RunTwo([&](const std::shared_ptr<Store>& store, int rank) {
    Member member(store, rank);
    std::optional<Tensor> registered = Registered(rank);
    const Tensor other =
        EmptyOnDevice(DeviceOf(rank), DType::kInt32, {kCount}, DeviceMemory::kPlain).value();
    member.Broadcast(*registered, 1);
    // The group lets go of its tensors with the call.
    EXPECT_TRUE(Await([&] { return registered->owner().use_count() == 1; }));
    both_called.StepAndWait();
    EXPECT_EQ(Registrations(), 2);
    if (rank == 0) FakeNccl::Get().hold_operations(1);
    are_held.StepAndWait();
    std::thread dropping([&] {
      EXPECT_TRUE(Await([] { return FakeNccl::Get().held_operations() == 2; }));
      registered.reset();
      EXPECT_EQ(FakeNccl::Get().calls("ncclCommDeregister"), before);
      if (rank == 1) may_go_on.Step();
      may_go_on.Wait();
      if (rank == 0) FakeNccl::Get().hold_operations(0);
    });
    member.Broadcast(other, 3);
    dropping.join();
    // With the call, though no other one follows.
    EXPECT_TRUE(Await([] { return Registrations() == 0 && Allocations() == 0; }));
  });
  EXPECT_EQ(FakeNccl::Get().calls("ncclCommDeregister"), before + 2);
}

// In the mode in which CUDA forbids the most to all threads.
TEST_F(NcclRegisteredMemoryTest, MemoryMayComeAndGoWhileAnotherThreadCapturesAGraph) {
  RunTwo([&](const std::shared_ptr<Store>& store, int rank) {
    Member member(store, rank);
    std::optional<Tensor> registered = Registered(rank);
    member.Broadcast(*registered, 1);
    EXPECT_TRUE(Await([&] { return registered->owner().use_count() == 1; }));
    constexpr int kGlobal = 0;
    const auto& cuda = device::FakeCuda::Get();
    const auto captured = Runtime().MakeStream(DeviceOf(rank)).value();
    const device::DeviceRuntime::ContextScope scope(Runtime(), DeviceOf(rank));
    ASSERT_EQ((cuda.Driver<int(void*, int)>("cuStreamBeginCapture_v2")(captured->handle, kGlobal)),
              0);
    std::thread([&] {
      registered.reset();
      ExpectOk(EmptyOnDevice(DeviceOf(rank), DType::kInt32, {kCount}, DeviceMemory::kRegistered)
                   .status());
    }).join();
    EXPECT_TRUE(device::TaskThread::Releases().AwaitIdle(Deadline(kTimeout)));
    void* graph = nullptr;
    EXPECT_EQ((cuda.Driver<int(void*, void**)>("cuStreamEndCapture")(captured->handle, &graph)), 0);
    if (graph != nullptr) cuda.Driver<int(void*)>("cuGraphDestroy")(graph);
  });
}

TEST_F(NcclRegisteredMemoryTest, WhatCannotBeAllocatedIsAnErrorThatSaysWhy) {
  const auto error = [](const Device& device, std::vector<int64_t> shape) {
    return EmptyOnDevice(device, DType::kFloat32, shape, DeviceMemory::kRegistered).status();
  };
  const absl::Status on_host = error({}, {3});
  EXPECT_EQ(KindOf(on_host), ErrorKind::kUnsupported) << on_host;
  const absl::Status nowhere = error(DeviceOf(8), {3});
  EXPECT_EQ(KindOf(nowhere), ErrorKind::kArgument) << nowhere;
  EXPECT_THAT(std::string(nowhere.message()), HasSubstr("cuda:8"));
  EXPECT_EQ(KindOf(error(DeviceOf(0), {-1})), ErrorKind::kArgument);
  FakeNccl::Get().fail_next("ncclMemAlloc", nccl::kNcclUnhandledCudaError);
  const absl::Status none = error(DeviceOf(1), {1000});
  EXPECT_EQ(KindOf(none), ErrorKind::kBackend) << none;
  EXPECT_THAT(std::string(none.message()),
              AllOf(HasSubstr("4000 bytes"), HasSubstr("cuda:1"), HasSubstr("ncclMemAlloc")));
  EXPECT_EQ(Allocations(), 0);
  const absl::StatusOr<Tensor> empty =
      EmptyOnDevice(DeviceOf(0), DType::kFloat32, {0, 3}, DeviceMemory::kRegistered);
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(empty->numel(), 0);
}

// The only one that can run on the devices of the machine, where nobody counts.
TEST(NcclRegisteredMemoryOnDevicesTest, ItServesAsAnyOtherMemory) {
  const auto store = std::make_shared<HashStore>();
  for (const absl::Status& status : RunRanks(2, [&](int rank) -> absl::Status {
         const Device device = DeviceOf(rank % Runtime().device_count());
         SYNCLINE_ASSIGN_OR_RETURN(const auto stream, Runtime().MakeStream(device));
         const StreamScope scope(*stream);
         ProcessGroup::Options options;
         options.store = store;
         options.backend = "cuda:nccl";
         options.rank = rank;
         options.size = 2;
         options.timeout = kTimeout;
         SYNCLINE_ASSIGN_OR_RETURN(const auto group, ProcessGroup::Create(options));
         const int64_t count = int64_t{1} << 20;
         SYNCLINE_ASSIGN_OR_RETURN(const Tensor whole, EmptyOnDevice(device, DType::kInt32, {count},
                                                                     DeviceMemory::kRegistered));
         for (int round = 0; round < 3; ++round) {
           const Tensor half = whole.Slice(round % 2 * count / 2, count / 2);
           const Tensor host = Numbers(DType::kInt32, half.numel(), rank);
           SYNCLINE_RETURN_IF_ERROR(
               Runtime().Copy(half.data(), host.data(), host.nbytes(), *stream));
           SYNCLINE_RETURN_IF_ERROR(group->AllReduce(half, ReduceOp::kSum));
           // Before the copy, too: see DeviceTensors::CopyBack.
           SYNCLINE_RETURN_IF_ERROR(Runtime().Synchronize(*stream, Deadline(kTimeout)));
           SYNCLINE_RETURN_IF_ERROR(
               Runtime().Copy(host.data(), half.data(), host.nbytes(), *stream));
           SYNCLINE_RETURN_IF_ERROR(Runtime().Synchronize(*stream, Deadline(kTimeout)));
           SYNCLINE_RETURN_IF_ERROR(CheckReduced(host, ReduceOp::kSum, Upto(2)));
         }
         SYNCLINE_RETURN_IF_ERROR(rank == 0 ? group->Send(whole, 1)
                                            : group->Recv(whole, 0).status());
         SYNCLINE_RETURN_IF_ERROR(Runtime().Synchronize(*stream, Deadline(kTimeout)));
         group->Close(kTimeout);
         return absl::OkStatus();
       })) {
    ExpectOk(status);
  }
}

// The version of the stand-in is read once in a process: in a new one, it is an older one.
TEST(NcclRegisteredMemoryDeathTest, AnOlderNcclIsNamed) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("FAKE_NCCL_VERSION", "21800", 1);
        const absl::Status old =
            EmptyOnDevice(DeviceOf(0), DType::kFloat32, {3}, DeviceMemory::kRegistered).status();
        std::fprintf(stderr, "%s: %s\n", KindOf(old) == ErrorKind::kUnsupported ? "refused" : "?",
                     std::string(old.message()).c_str());
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "refused: .*2.19 or later.*2.18.0");
}

}  // namespace
}  // namespace syncline
