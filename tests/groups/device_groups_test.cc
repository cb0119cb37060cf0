// Groups on tensors of devices: every operation, on each backend that serves them.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/device/device_runtime.h"
#include "core/device/task_thread.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend_registry.h"
#include "syncline/deadline.h"
#include "syncline/device_memory.h"
#include "syncline/hash_store.h"
#include "syncline/process_group.h"
#include "syncline/status.h"
#include "syncline/stream.h"
#include "tests/groups/group_ranks.h"
#include "tests/support/device_calls.h"
#include "tests/support/operations.h"
#include "tests/support/ranks.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr int kCudaErrorOutOfMemory = 2;

// More than what one chunk of a call through memory of the host holds, and no multiple of it.
constexpr int64_t kSeveralChunks = (int64_t{9} << 20) / 4 + 13;

std::vector<Spec> Specs(int size) {
  std::vector<Spec> specs;
  for (OpKind kind : CollectiveKinds()) {
    for (DType dtype : {DType::kFloat32, DType::kInt64, DType::kUInt8}) {
      for (const int64_t count : {0, 1, 33}) {
        Spec spec = {kind, dtype, count};
        spec.root = HasRoot(kind) ? size - 1 : 0;
        specs.push_back(spec);
      }
    }
    Spec spec = {kind, DType::kFloat32, 33};
    if (AllowsInPlace(kind)) {
      spec.buffers = BufferUse::kInPlace;
      specs.push_back(spec);
      spec.buffers = BufferUse::kApart;
    }
    if (HasSplits(kind)) {
      spec.uneven = {0, 4, 31};
      specs.push_back(spec);
    }
  }
  return specs;
}

absl::Status RunOnDevice(const Spec& spec, ProcessGroup& group) {
  const Collective host = Build(spec, group.rank(), group.size());
  SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(group.rank()));
  DeviceTensors tensors(device);
  SYNCLINE_ASSIGN_OR_RETURN(const Collective call, tensors.Of(host));
  SYNCLINE_RETURN_IF_ERROR(group.Run(call).status());
  SYNCLINE_RETURN_IF_ERROR(tensors.CopyBack());
  return CheckDone(spec, host, group.rank(), group.size());
}

// Ranks of one machine's few devices share them, and would wait for each other on a default stream
// that they share. They have streams of their own then.
absl::Status OnStreamOfRank(int rank, const std::function<absl::Status()>& body) {
  if (device::DevicesAreSimulated()) return body();
  SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(rank));
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  SYNCLINE_ASSIGN_OR_RETURN(const auto stream, runtime->MakeStream(device));
  const StreamScope scope(*stream);
  return body();
}

std::vector<absl::Status> RunRanksOnDevices(
    const std::string& backend, int size,
    const std::function<absl::Status(ProcessGroup& group)>& body) {
  return RunGroup(backend, size, [&](ProcessGroup& group) {
    return OnStreamOfRank(group.rank(), [&] { return body(group); });
  });
}

class DeviceGroups : public testing::TestWithParam<std::tuple<std::string, int>> {
 public:
  static const std::string& backend() { return std::get<0>(GetParam()); }
  static int size() { return std::get<1>(GetParam()); }

  static void Run(const std::function<absl::Status(ProcessGroup& group)>& body) {
    for (const absl::Status& status : RunRanksOnDevices(backend(), size(), body)) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
};

TEST_P(DeviceGroups, EveryOperationIsRight) {
  Run([](ProcessGroup& group) -> absl::Status {
    for (const Spec& spec : Specs(size())) {
      SYNCLINE_RETURN_IF_ERROR(RunOnDevice(spec, group));
    }
    return absl::OkStatus();
  });
}

TEST_P(DeviceGroups, LongTensorsAreRight) {
  Run([](ProcessGroup& group) -> absl::Status {
    for (OpKind kind : CollectiveKinds()) {
      Spec spec = {kind, DType::kFloat32, kSeveralChunks / (AllowsInPlace(kind) ? size() : 1)};
      if (kind == OpKind::kBarrier || kind == OpKind::kAllToAll) continue;
      SYNCLINE_RETURN_IF_ERROR(RunOnDevice(spec, group));
    }
    return absl::OkStatus();
  });
}

TEST_P(DeviceGroups, EveryOperationIsRightWhenAllAreStartedAtOnce) {
  Run([](ProcessGroup& group) -> absl::Status {
    const std::vector<Spec> specs = Specs(size());
    SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(group.rank()));
    std::vector<Collective> hosts;
    std::vector<DeviceTensors> tensors;
    std::vector<std::shared_ptr<Work>> works;
    for (const Spec& spec : specs) {
      hosts.push_back(Build(spec, group.rank(), size()));
      SYNCLINE_ASSIGN_OR_RETURN(Collective call,
                                tensors.emplace_back(DeviceTensors(device)).Of(hosts.back()));
      SYNCLINE_ASSIGN_OR_RETURN(works.emplace_back(), group.Start(std::move(call)));
    }
    for (size_t i = 0; i < specs.size(); ++i) {
      SYNCLINE_RETURN_IF_ERROR(works[i]->Wait());  // The current stream waits.
      SYNCLINE_RETURN_IF_ERROR(tensors[i].CopyBack());
      SYNCLINE_RETURN_IF_ERROR(CheckDone(specs[i], hosts[i], group.rank(), size()));
      SYNCLINE_RETURN_IF_ERROR(works[i]->Synchronize(kGroupTimeout));
      SYNCLINE_RETURN_IF_ERROR(Expect(works[i]->IsCompleted(), "completed", group));
    }
    return absl::OkStatus();
  });
}

TEST_P(DeviceGroups, MessagesArrive) {
  if (size() == 1) return;
  Run([](ProcessGroup& group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(group.rank()));
    const int next = (group.rank() + 1) % size(), previous = (group.rank() + size() - 1) % size();
    for (const int64_t count : {int64_t{0}, int64_t{7}, kSeveralChunks}) {
      DeviceTensors tensors(device);
      const Tensor sent = Bytes(DType::kFloat32, count, group.rank());
      const Tensor received = Bytes(DType::kFloat32, count, 99);
      SYNCLINE_ASSIGN_OR_RETURN(const Tensor out, tensors.Of(sent));
      SYNCLINE_ASSIGN_OR_RETURN(const Tensor in, tensors.Of(received));
      // All send first: one send does not wait for the other rank's.
      SYNCLINE_ASSIGN_OR_RETURN(const auto send, group.SendAsync(out, next));
      SYNCLINE_ASSIGN_OR_RETURN(const int source, group.Recv(in, previous));
      SYNCLINE_RETURN_IF_ERROR(Expect(source == previous, "source", group));
      SYNCLINE_RETURN_IF_ERROR(send->Wait());
      SYNCLINE_RETURN_IF_ERROR(tensors.CopyBack());
      SYNCLINE_RETURN_IF_ERROR(
          Expect(SameBytes(received, Bytes(DType::kFloat32, count, previous)), "recv", group));
    }
    return absl::OkStatus();
  });
}

TEST_P(DeviceGroups, OperationsOnSeveralTensorsAreRight) {
  Run([](ProcessGroup& group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(group.rank()));
    DeviceTensors tensors(device);
    std::vector<Tensor> summed, moved, gathered;
    for (int i = 0; i < 3; ++i) {
      summed.push_back(Numbers(DType::kInt32, 5 + i, group.rank()));
      moved.push_back(Bytes(i == 1 ? DType::kUInt8 : DType::kFloat64, 4 * i, group.rank()));
      for (int r = 0; r < size(); ++r) gathered.push_back(Bytes(DType::kInt32, 5 + i, 99));
    }
    SYNCLINE_ASSIGN_OR_RETURN(const auto device_summed, tensors.Of(summed));
    SYNCLINE_ASSIGN_OR_RETURN(const auto device_moved, tensors.Of(moved));
    SYNCLINE_ASSIGN_OR_RETURN(const auto device_gathered, tensors.Of(gathered));
    SYNCLINE_RETURN_IF_ERROR(group.AllReduceCoalesced(device_summed));
    SYNCLINE_RETURN_IF_ERROR(group.BroadcastCoalesced(device_moved, size() - 1));
    SYNCLINE_RETURN_IF_ERROR(group.AllGatherCoalesced(device_gathered, device_summed));
    SYNCLINE_ASSIGN_OR_RETURN(const auto work, group.AllReduceCoalescedAsync(device_summed));
    SYNCLINE_RETURN_IF_ERROR(work->Synchronize(kGroupTimeout));
    SYNCLINE_RETURN_IF_ERROR(group.ReduceScatterCoalesced(device_summed, device_gathered));
    SYNCLINE_RETURN_IF_ERROR(tensors.CopyBack());
    const std::vector<int> all = Upto(size());
    for (int i = 0; i < 3; ++i) {
      for (int r = 0; r < size(); ++r) {
        SYNCLINE_RETURN_IF_ERROR(CheckReduced(gathered[i * size() + r], ReduceOp::kSum, all));
      }
      // Of all ranks' sums.
      std::vector<int> seeds;
      for (int r = 0; r < size(); ++r) seeds.insert(seeds.end(), all.begin(), all.end());
      SYNCLINE_RETURN_IF_ERROR(CheckReduced(summed[i], ReduceOp::kSum, seeds));
      SYNCLINE_RETURN_IF_ERROR(
          Expect(SameBytes(moved[i], Bytes(moved[i].dtype(), 4 * i, size() - 1)), "moved", group));
    }
    return absl::OkStatus();
  });
}

TEST_P(DeviceGroups, TensorsOfSeveralDevicesCountAsRanksOfTheirOwn) {
  const int devices = (*device::DeviceRuntime::Get())->device_count();
  if (2 * size() > devices && device::DevicesAreSimulated()) return;  // Eight.
  if (2 * size() > devices) GTEST_SKIP() << "needs " << 2 * size() << " devices";
  Run([](ProcessGroup& group) -> absl::Status {
    DeviceTensors here({DeviceType::kCuda, 2 * group.rank()});
    DeviceTensors there({DeviceType::kCuda, 2 * group.rank() + 1});
    const std::vector<Tensor> host = {Numbers(DType::kFloat32, 9, 2 * group.rank()),
                                      Numbers(DType::kFloat32, 9, 2 * group.rank() + 1)};
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor first, here.Of(host[0]));
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor second, there.Of(host[1]));
    SYNCLINE_RETURN_IF_ERROR(group.AllReduceMulti({first, second}, ReduceOp::kAvg));
    SYNCLINE_RETURN_IF_ERROR(here.CopyBack());
    SYNCLINE_RETURN_IF_ERROR(there.CopyBack());
    const std::vector<int> all = Upto(2 * size());
    SYNCLINE_RETURN_IF_ERROR(CheckReduced(host[0], ReduceOp::kAvg, all));
    SYNCLINE_RETURN_IF_ERROR(
        Expect(SameBytes(host[0], host[1]), "the same on both devices", group));
    SYNCLINE_RETURN_IF_ERROR(group.BroadcastMulti({first, second}, 0, 1));
    SYNCLINE_RETURN_IF_ERROR(here.CopyBack());
    return there.CopyBack();
  });
}

// What was enqueued on the caller's stream before the call is done before it, and what is enqueued
// afterwards after it, also on a slow device; and no call waits for a device that stands still.
TEST_P(DeviceGroups, CallsAreInTheOrderOfTheCallersStream) {
  Run([](ProcessGroup& group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
    SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(group.rank()));
    SYNCLINE_ASSIGN_OR_RETURN(const auto stream, runtime->MakeStream(device));
    const StreamScope scope(*stream);
    for (int i = 0; i < 20; ++i) {
      const Tensor host = Tensor::Zeros(DType::kFloat32, {1000});
      std::fill_n(host.data_as<float>(), host.numel(), static_cast<float>(i + 1));
      SYNCLINE_ASSIGN_OR_RETURN(Tensor tensor, EmptyOnDevice(device, DType::kFloat32, {1000}));
      SYNCLINE_ASSIGN_OR_RETURN(Tensor copy, EmptyOnDevice(device, DType::kFloat32, {1000}));
      SYNCLINE_RETURN_IF_ERROR(runtime->Copy(tensor.data(), host.data(), host.nbytes(), *stream));
      SYNCLINE_RETURN_IF_ERROR(group.AllReduce(tensor));
      // On the device, as a copy to the host may wait: see DeviceTensors::CopyBack.
      SYNCLINE_RETURN_IF_ERROR(runtime->Copy(copy.data(), tensor.data(), copy.nbytes(), *stream));
      SYNCLINE_RETURN_IF_ERROR(runtime->Fill(tensor.data(), 0xff, tensor.nbytes(), *stream));
      SYNCLINE_RETURN_IF_ERROR(runtime->Synchronize(*stream, Deadline(kGroupTimeout)));
      const Tensor result = Tensor::Zeros(DType::kFloat32, {1000});
      SYNCLINE_RETURN_IF_ERROR(runtime->Copy(result.data(), copy.data(), result.nbytes(), *stream));
      SYNCLINE_RETURN_IF_ERROR(runtime->Synchronize(*stream, Deadline(kGroupTimeout)));
      const float sum = static_cast<float>((i + 1) * size());
      const bool is_right = std::all_of(result.data_as<float>(), result.data_as<float>() + 1000,
                                        [&](float value) { return value == sum; });
      SYNCLINE_RETURN_IF_ERROR(Expect(is_right, absl::StrCat("sum ", i), group));
    }
    return absl::OkStatus();
  });
}

TEST_P(DeviceGroups, MixedDevicesAreRefusedAndTheGroupGoesOn) {
  if (size() < 2) return;
  if ((*device::DeviceRuntime::Get())->device_count() < 8) GTEST_SKIP() << "needs 8 devices";
  Run([](ProcessGroup& group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(group.rank()));
    DeviceTensors here(device), elsewhere({DeviceType::kCuda, 7});
    const Tensor host = Bytes(DType::kFloat32, 4, 1);
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor input, here.Of(host));
    std::vector<Tensor> outputs;
    for (int r = 0; r < size(); ++r) {
      SYNCLINE_ASSIGN_OR_RETURN(
          outputs.emplace_back(),
          EmptyOnDevice(r == 0 ? Device{DeviceType::kCuda, 7} : device, DType::kFloat32, {4}));
    }
    const absl::Status refused = group.AllGather(outputs, input);
    SYNCLINE_RETURN_IF_ERROR(Expect(
        KindOf(refused) == ErrorKind::kArgument &&
            std::string(refused.message()).find("outputs[0] is on cuda:7") != std::string::npos,
        refused.message(), group));
    SYNCLINE_RETURN_IF_ERROR(group.AllReduce(input));
    return here.CopyBack();
  });
}

std::string NameOf(const testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param));
}

// One in memory of the host, one on streams.
INSTANTIATE_TEST_SUITE_P(EverySize, DeviceGroups,
                         testing::Combine(testing::Values("nccl", "shm"),
                                          testing::Values(1, 2, 3, 7)),
                         &NameOf);
INSTANTIATE_TEST_SUITE_P(OtherBackends, DeviceGroups,
                         testing::Combine(testing::Values("auto", "gloo", "local", "tcp"),
                                          testing::Values(2)),
                         &NameOf);

// A backend for tensors of devices that some ranks cannot use, and one that would take it.
thread_local bool can_use_sometimes = true;
std::atomic<int> times_made{0};

// Once nccl and local are registered.
void Register() {
  if (BackendRegistry::Has("choosy")) return;
  BackendRegistry::Entry sometimes = *BackendRegistry::Find("nccl");
  sometimes.make = [make = sometimes.make](const BackendConfig& config) {
    ++times_made;
    return make(config);
  };
  sometimes.check = [] {
    return can_use_sometimes ? absl::OkStatus() : UnsupportedError("this rank has no such thing");
  };
  BackendRegistry::Entry choosy = *BackendRegistry::Find("local");
  choosy.cuda_backend = "sometimes";
  ASSERT_TRUE(BackendRegistry::Add("sometimes", sometimes).ok());
  ASSERT_TRUE(BackendRegistry::Add("choosy", choosy).ok());
}

// How many ranks have made backend "sometimes".
int TimesMade(const std::function<bool(int rank)>& can_use) {
  times_made = 0;
  const auto store = std::make_shared<HashStore>();
  const auto outcomes = RunRanks(3, [&](int rank) -> absl::Status {
    can_use_sometimes = can_use(rank);
    ProcessGroup::Options options;
    options.backend = "choosy";
    options.store = store;
    options.rank = rank;
    options.size = 3;
    options.timeout = kGroupTimeout;
    SYNCLINE_ASSIGN_OR_RETURN(const auto group, ProcessGroup::Create(options));
    return OnStreamOfRank(rank, [&]() -> absl::Status {
      // A message between two ranks before anything that all of them do.
      SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(rank));
      DeviceTensors tensors(device);
      const Tensor host = Numbers(DType::kFloat32, 10, rank);
      SYNCLINE_ASSIGN_OR_RETURN(const Tensor tensor, tensors.Of(host));
      if (rank == 1) SYNCLINE_RETURN_IF_ERROR(group->Send(tensor, 2));
      if (rank == 2) {
        SYNCLINE_ASSIGN_OR_RETURN(const Tensor other, EmptyOnDevice(device, DType::kFloat32, {10}));
        SYNCLINE_RETURN_IF_ERROR(group->Recv(other, 1).status());
      }
      SYNCLINE_RETURN_IF_ERROR(group->AllReduce(tensor));
      SYNCLINE_RETURN_IF_ERROR(tensors.CopyBack());
      group->Close();
      return CheckReduced(host, ReduceOp::kSum, {0, 1, 2});
    });
  });
  for (const absl::Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome;
  return times_made;
}

TEST(ChoiceOfBackendTest, ABackendForDevicesIsTakenWhereAllRanksCanUseIt) {
  Register();
  EXPECT_EQ(TimesMade([](int) { return true; }), 3);
  EXPECT_EQ(TimesMade([](int rank) { return rank != 1; }), 0);
  EXPECT_EQ(TimesMade([](int) { return false; }), 0);
}

TEST(StagedTensorsTest, RanksWhoseTensorsDifferAreAMismatchThatQuotesTheTensors) {
  const auto outcomes = RunRanksOnDevices("shm", 2, [](ProcessGroup& group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(group.rank()));
    // Both have chunks of the same size at first.
    const int64_t count = group.rank() == 0 ? kSeveralChunks : 2 * kSeveralChunks;
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor tensor, EmptyOnDevice(device, DType::kFloat32, {count}));
    return group.AllReduce(tensor);
  });
  for (const absl::Status& outcome : outcomes) {
    EXPECT_EQ(KindOf(outcome), ErrorKind::kMismatch) << outcome;
    EXPECT_THAT(std::string(outcome.message()), HasSubstr(absl::StrCat(2 * kSeveralChunks)));
  }
}

TEST(StagedTensorsTest, MessagesOfDifferentSizesAreAMismatch) {
  const auto outcomes = RunRanksOnDevices("shm", 2, [](ProcessGroup& group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(group.rank()));
    const int64_t count = (group.rank() + 1) * kSeveralChunks;
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor tensor, EmptyOnDevice(device, DType::kFloat32, {count}));
    if (group.rank() == 0) return group.Recv(tensor, 1).status();
    return group.Send(tensor, 0);
  });
  EXPECT_EQ(KindOf(outcomes[0]), ErrorKind::kMismatch) << outcomes[0];
}

TEST(StagedTensorsTest, AReceiveFromAnyRankSaysWhoHasSent) {
  const auto outcomes = RunRanksOnDevices("shm", 3, [](ProcessGroup& group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(group.rank()));
    DeviceTensors tensors(device);
    const Tensor host = Bytes(DType::kFloat32, kSeveralChunks, group.rank());
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor tensor, tensors.Of(host));
    if (group.rank() > 0) return group.Send(tensor, 0);
    for (int i = 0; i < 2; ++i) {
      SYNCLINE_ASSIGN_OR_RETURN(const int source, group.Recv(tensor, kAnySource));
      SYNCLINE_RETURN_IF_ERROR(tensors.CopyBack());
      SYNCLINE_RETURN_IF_ERROR(
          Expect(source > 0 && SameBytes(host, Bytes(DType::kFloat32, kSeveralChunks, source)),
                 absl::StrCat("source ", source), group));
    }
    return absl::OkStatus();
  });
  for (const absl::Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome;
}

TEST(StagedTensorsTest, AbortEndsAWaitForADeviceThatStandsStill) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  const device::HeldStreams held(0);
  const auto outcomes = RunRanksOnDevices("local", 1, [](ProcessGroup& group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor tensor,
                              EmptyOnDevice({DeviceType::kCuda, 0}, DType::kFloat32, {10}));
    SYNCLINE_ASSIGN_OR_RETURN(const auto work, group.AllReduceAsync(tensor));
    group.Abort("the test is over");
    return work->Synchronize(kGroupTimeout);
  });
  EXPECT_THAT(std::string(outcomes[0].message()), HasSubstr("the test is over"));
}

TEST(StagedTensorsTest, TensorsOfTheHostAndOfADeviceAreNotMixed) {
  const auto outcomes = RunRanksOnDevices("local", 1, [](ProcessGroup& group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor there,
                              EmptyOnDevice({DeviceType::kCuda, 0}, DType::kFloat32, {10}));
    const Tensor here = Numbers(DType::kFloat32, 10, 1);
    EXPECT_EQ(KindOf(group.AllGatherCoalesced({there}, {here})), ErrorKind::kArgument);
    EXPECT_EQ(KindOf(group.ReduceScatterCoalesced({here}, {there})), ErrorKind::kArgument);
    EXPECT_EQ(KindOf(group.AllReduceCoalesced({here, there})), ErrorKind::kArgument);
    EXPECT_EQ(KindOf(group.AllGather({there}, here)), ErrorKind::kArgument);
    EXPECT_EQ(KindOf(group.AllToAll({here}, {there})), ErrorKind::kArgument);
    return group.status();
  });
  EXPECT_TRUE(outcomes[0].ok()) << outcomes[0];
}

// A program that is right, whichever of its operations takes long.
TEST(NcclGroupsTest, CallsOnDevicesDoNotWaitForThoseOfTheHost) {
  const auto outcomes = RunRanksOnDevices("auto", 2, [](ProcessGroup& group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(group.rank()));
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor tensor, EmptyOnDevice(device, DType::kFloat32, {10}));
    // The first call makes the communicator, for which ranks wait for each other.
    SYNCLINE_RETURN_IF_ERROR(group.AllReduce(tensor));
    const Tensor message = Tensor::Zeros(DType::kFloat32, {1});
    if (group.rank() == 1) SYNCLINE_RETURN_IF_ERROR(group.Recv(message, 0).status());
    SYNCLINE_ASSIGN_OR_RETURN(const auto barrier, group.BarrierAsync());
    SYNCLINE_ASSIGN_OR_RETURN(const auto work, group.AllReduceAsync(tensor));
    if (group.rank() == 0) SYNCLINE_RETURN_IF_ERROR(group.Send(message, 1));
    SYNCLINE_RETURN_IF_ERROR(work->Synchronize(kGroupTimeout));
    return barrier->Wait(kGroupTimeout);
  });
  for (const absl::Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome;
}

TEST(NcclGroupsTest, ACapturedReceiveSaysWhoHasSent) {
  const auto statuses = RunGroup("cpu:auto,cuda:nccl", 2, [](ProcessGroup& group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(group.rank()));
    device::DeviceRuntime& runtime = **device::DeviceRuntime::Get();
    SYNCLINE_ASSIGN_OR_RETURN(const auto stream, runtime.MakeStream(device));
    const StreamScope scope(*stream);
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor tensor, EmptyOnDevice(device, DType::kFloat32, {9}));
    const auto call = [&]() -> absl::StatusOr<std::shared_ptr<Work>> {
      return group.rank() == 1 ? group.SendAsync(tensor, 0) : group.RecvAsync(tensor, 1);
    };
    SYNCLINE_ASSIGN_OR_RETURN(const auto first, call());  // Connects the ranks.
    SYNCLINE_RETURN_IF_ERROR(first->Synchronize());
    const device::DeviceRuntime::ContextScope context(runtime, device);
    const auto& cuda = device::FakeCuda::Get();
    EXPECT_EQ((cuda.Driver<int(void*, int)>("cuStreamBeginCapture_v2")(stream->handle, 0)), 0);
    const auto work = call();
    void* graph = nullptr;
    EXPECT_EQ((cuda.Driver<int(void*, void**)>("cuStreamEndCapture")(stream->handle, &graph)), 0);
    SYNCLINE_RETURN_IF_ERROR(work.status());
    EXPECT_TRUE((*work)->IsCompleted());
    EXPECT_EQ((*work)->source_rank(), group.rank() == 0 ? 1 : -1);
    EXPECT_EQ(cuda.Driver<int(void*)>("cuGraphDestroy")(graph), 0);
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

class DroppedGroups : public testing::TestWithParam<std::string> {};

TEST_P(DroppedGroups, ACallbackMayDropTheLastReferenceToItsGroup) {
  const auto store = std::make_shared<HashStore>();
  const auto outcomes = RunRanks(2, [&](int rank) -> absl::Status {
    ProcessGroup::Options options;
    options.backend = GetParam();
    options.store = store;
    options.rank = rank;
    options.size = 2;
    options.timeout = kGroupTimeout;
    SYNCLINE_ASSIGN_OR_RETURN(auto group, ProcessGroup::Create(options));
    SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(rank));
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor tensor, EmptyOnDevice(device, DType::kFloat32, {10}));
    SYNCLINE_ASSIGN_OR_RETURN(const auto first, group->AllReduceAsync(tensor));
    // Rank 1 makes no second call: that of rank 0 ends with its group.
    std::shared_ptr<Work> second;
    if (rank == 0) {
      SYNCLINE_ASSIGN_OR_RETURN(second, group->AllReduceAsync(tensor));
    }
    Countdown dropped(1);
    first->OnComplete([&, held = std::move(group)](const absl::Status&) mutable {
      held.reset();
      dropped.Step();
    });
    SYNCLINE_RETURN_IF_ERROR(first->Synchronize(kGroupTimeout));
    dropped.Wait();
    if (second != nullptr && second->Synchronize(kGroupTimeout).ok()) {
      return absl::InternalError("the second call has ended well");
    }
    return absl::OkStatus();
  });
  for (const absl::Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome;
}

INSTANTIATE_TEST_SUITE_P(All, DroppedGroups, testing::Values("nccl", "shm"),
                         [](const auto& info) { return info.param; });

TEST(StagedTensorsTest, ACallWhoseDeviceStandsStillEndsAtItsDeadline) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  const device::HeldStreams held(0);
  const auto outcomes = RunRanksOnDevices("shm", 2, [](ProcessGroup& group) -> absl::Status {
    const Device device = {DeviceType::kCuda, group.rank()};
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor tensor, EmptyOnDevice(device, DType::kFloat32, {10}));
    return group.AllReduce(tensor, ReduceOp::kSum, absl::Milliseconds(300));
  });
  EXPECT_EQ(KindOf(outcomes[0]), ErrorKind::kTimeout) << outcomes[0];
  EXPECT_THAT(std::string(outcomes[0].message()), HasSubstr("cuda:0"));
  EXPECT_FALSE(outcomes[1].ok());
}

TEST(StagedTensorsTest, WithoutPinnedMemoryTheCallFailsOnAllRanks) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  // An allocation is tried again if there is memory that is being given back. Calls of the tests
  // before may have left work to the devices, whose end lets go of memory.
  for (const int device : {0, 1}) device::AwaitDevice(device);
  EXPECT_TRUE(device::TaskThread::Callbacks().AwaitIdle(Deadline(absl::Minutes(1))));
  EXPECT_TRUE(device::TaskThread::Releases().AwaitIdle(Deadline(absl::Minutes(1))));
  device::FakeCuda::Get().fail_next("cuMemHostAlloc", 1, kCudaErrorOutOfMemory);
  const auto outcomes = RunRanksOnDevices("shm", 2, [](ProcessGroup& group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Device device, DeviceOfRank(group.rank()));
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor tensor, EmptyOnDevice(device, DType::kFloat32, {10}));
    return group.AllReduce(tensor);
  });
  for (const absl::Status& outcome : outcomes) EXPECT_FALSE(outcome.ok());
}

}  // namespace
}  // namespace syncline
