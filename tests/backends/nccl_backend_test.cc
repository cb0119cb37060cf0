// What backend nccl does beside the suite of all backends: how calls are enqueued, what NCCL and
// the device say, and what is left when all is over. Ranks are threads on simulated devices.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "backends/nccl/fingerprint_board.h"
#include "backends/nccl/nccl_library.h"
#include "backends/nccl/operations.h"
#include "backends/nccl/testing/fake_nccl/fake_nccl.h"
#include "core/device/device_runtime.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend_registry.h"
#include "syncline/device_memory.h"
#include "syncline/hash_store.h"
#include "syncline/log.h"
#include "syncline/status.h"
#include "tests/backends/fake_nccl_control.h"
#include "tests/support/backend_config.h"
#include "tests/support/ranks.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

using device::DeviceRuntime;
using device::HeldStreams;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
// What must happen within a second may take this much longer on a busy machine.
constexpr absl::Duration kSoon = absl::Milliseconds(2500);

DeviceRuntime& Runtime() { return **DeviceRuntime::Get(); }

// One rank, on the device of its number, as far as there are enough.
class Rank {
 public:
  static absl::StatusOr<std::unique_ptr<Rank>> Join(std::shared_ptr<Store> store, int rank,
                                                    int size) {
    BackendConfig config = OnLoopback(std::move(store), rank, size, kTimeout);
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, BackendRegistry::Make("nccl", config));
    const Device device = {DeviceType::kCuda, rank % Runtime().device_count()};
    SYNCLINE_ASSIGN_OR_RETURN(auto stream, Runtime().MakeStream(device));
    return std::unique_ptr<Rank>(new Rank(std::move(backend), device, std::move(stream), rank));
  }

  Backend& backend() { return *backend_; }
  void Destroy() { backend_ = nullptr; }
  int rank() const { return rank_; }
  const Stream& stream() const { return *stream_; }

  // The same elements in memory of the device.
  Tensor OnDevice(const Tensor& host) { return OnDevice(host, device_); }
  Tensor OnDevice(const Tensor& host, const Device& device) {
    Tensor copy = EmptyOnDevice(device, host.dtype(), host.shape()).value();
    EXPECT_TRUE(Runtime().Copy(copy.data(), host.data(), host.nbytes(), *stream_).ok());
    EXPECT_TRUE(Synchronize().ok());
    return copy;
  }
  Tensor OnHost(const Tensor& on_device) {
    Tensor copy = Tensor::Zeros(on_device.dtype(), on_device.shape());
    EXPECT_TRUE(Synchronize().ok());  // Before the copy, too: see DeviceTensors::CopyBack.
    EXPECT_TRUE(Runtime().Copy(copy.data(), on_device.data(), on_device.nbytes(), *stream_).ok());
    EXPECT_TRUE(Synchronize().ok());
    return copy;
  }
  absl::Status Synchronize() { return Runtime().Synchronize(*stream_, Deadline(kTimeout)); }

  // Enqueues the calls behind the rank's stream.
  absl::StatusOr<Completion> Run(absl::Span<const Collective> calls, uint64_t sequence = 0,
                                 absl::Duration timeout = kTimeout) {
    return RunOn(*stream_, calls, sequence, timeout);
  }
  absl::StatusOr<Completion> RunOn(const Stream& stream, absl::Span<const Collective> calls,
                                   uint64_t sequence, absl::Duration timeout = kTimeout) {
    SYNCLINE_ASSIGN_OR_RETURN(auto ready, Runtime().Record(stream));
    CallerStream caller = {stream, std::move(ready), {}};
    CallContext context = {sequence, Deadline(timeout)};
    context.caller = &caller;
    return backend_->Run(calls, context);
  }
  absl::StatusOr<int> RunAndWait(const Collective& call, uint64_t sequence = 0,
                                 absl::Duration timeout = kTimeout) {
    SYNCLINE_ASSIGN_OR_RETURN(const Completion completion, Run({call}, sequence, timeout));
    return WaitFor(completion, call, Deadline(timeout));
  }

 private:
  Rank(std::shared_ptr<Backend> backend, const Device& device, std::shared_ptr<const Stream> stream,
       int rank)
      : backend_(std::move(backend)), device_(device), stream_(std::move(stream)), rank_(rank) {}

  std::shared_ptr<Backend> backend_;
  const Device device_;
  const std::shared_ptr<const Stream> stream_;
  const int rank_;
};

// Runs `body` on each rank, and looks that nothing is left of them.
void RunGroup(int size, const std::function<void(Rank& rank)>& body) {
  const auto store = std::make_shared<HashStore>();
  // A device that has failed keeps its memory.
  const bool counts_objects = device::DevicesAreSimulated();
  fake_cuda_counts before = {};
  if (counts_objects) before = device::FakeCuda::Get().Counts();
  for (const absl::Status& status : RunRanks(size, [&](int rank) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(const auto joined, Rank::Join(store, rank, size));
         body(*joined);
         return absl::OkStatus();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  if (!counts_objects) return;
  EXPECT_EQ(FakeNccl::Get().live_communicators(), 0);
  fake_cuda_counts counts = device::FakeCuda::Get().Counts();
  // Streams are threads, which end a little later, and memory is given back by one.
  const auto is_as_before = [&] {
    return counts.streams == before.streams && counts.pending_items == before.pending_items &&
           counts.device_allocations == before.device_allocations;
  };
  for (const Deadline deadline(kTimeout); !is_as_before() && !deadline.Expired();
       counts = device::FakeCuda::Get().Counts()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(counts.streams, before.streams);
  EXPECT_EQ(counts.device_allocations, before.device_allocations);
  EXPECT_EQ(counts.pending_items, before.pending_items);
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

void ExpectUnsupported(const absl::Status& status, const std::string& reason) {
  EXPECT_EQ(KindOf(status), ErrorKind::kUnsupported) << status;
  EXPECT_THAT(Message(status), HasSubstr(reason));
}

TEST(NcclBackendTest, TagsAndReceivesFromAnyRankAreRefusedWithTheReason) {
  RunGroup(2, [](Rank& rank) {
    const Tensor tensor = rank.OnDevice(Numbers(DType::kFloat32, 5, 0));
    const int peer = 1 - rank.rank();
    ExpectUnsupported(rank.Run({Collective::Send(tensor, peer, 3)}).status(), "no tags but 0");
    ExpectUnsupported(rank.Run({Collective::Recv(tensor, kAnySource)}).status(),
                      "does not receive from any rank");
    // The group goes on.
    ExpectOk(rank.RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum)).status());
  });
}

TEST(NcclBackendTest, ACallReturnsBeforeItsWorkBegins) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  RunGroup(2, [](Rank& rank) {
    const Tensor tensor = rank.OnDevice(Numbers(DType::kFloat32, 1000, rank.rank()));
    // Makes the communicator.
    ExpectOk(rank.RunAndWait(Collective::AllReduce(tensor, ReduceOp::kMax)).status());
    const Tensor next = rank.OnDevice(Numbers(DType::kInt32, 1000, rank.rank()));
    std::shared_ptr<Completion::Handle> handle;
    {
      const HeldStreams held(rank.rank());
      const auto completion = rank.Run({Collective::AllReduce(next, ReduceOp::kSum)}, 1);
      ASSERT_TRUE(completion.ok()) << completion.status();
      handle = completion->handle();
      ASSERT_NE(handle, nullptr);
      EXPECT_TRUE(handle->is_stream_ordered());
      EXPECT_FALSE(handle->IsDone());
      EXPECT_EQ(KindOf(handle->Wait(Deadline(absl::Milliseconds(20))).status()),
                ErrorKind::kTimeout);
      // What is enqueued behind it sees the result.
      ExpectOk(handle->EnqueueWait(rank.stream()));
    }
    const int seeds[] = {0, 1};
    ExpectOk(CheckReduced(rank.OnHost(next), ReduceOp::kSum, seeds));
    ExpectOk(handle->Wait(Deadline(kTimeout)).status());
  });
}

// The real NCCL connects two ranks when both have called: docs/benchmarks/cuda.md.
TEST(NcclBackendTest, RanksThatAllSendFirstDoNotWaitForEachOther) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  constexpr int kSize = 3;
  RunGroup(kSize, [](Rank& rank) {
    const int next = (rank.rank() + 1) % kSize, previous = (rank.rank() + kSize - 1) % kSize;
    const Tensor out = rank.OnDevice(Bytes(DType::kInt32, 1 << 18, rank.rank()));
    const Tensor in = rank.OnDevice(Tensor::Zeros(DType::kInt32, {1 << 18}));
    const auto sent = rank.Run({Collective::Send(out, next)});
    ASSERT_TRUE(sent.ok()) << sent.status();
    EXPECT_EQ(rank.RunAndWait(Collective::Recv(in, previous)).value_or(-1), previous);
    ExpectOk(WaitFor(*sent, Collective::Send(out, next), Deadline(kTimeout)).status());
    EXPECT_TRUE(SameBytes(rank.OnHost(in), Bytes(DType::kInt32, 1 << 18, previous)));
  });
}

TEST(NcclBackendTest, MessagesMatchInOrderWhetherTheyArePassedTogetherOrAlone) {
  RunGroup(2, [](Rank& rank) {
    std::vector<Tensor> tensors;
    std::vector<Collective> calls;
    for (int i = 0; i < 4; ++i) {
      tensors.push_back(rank.OnDevice(Bytes(DType::kUInt16, 100, rank.rank() == 0 ? i : 99)));
    }
    for (const Tensor& tensor : tensors) {
      calls.push_back(rank.rank() == 0 ? Collective::Send(tensor, 1) : Collective::Recv(tensor, 0));
    }
    // Rank 0: the first two together. Rank 1: the last three.
    const size_t cut = rank.rank() == 0 ? 2 : 1;
    const absl::Span<const Collective> all = calls;
    std::vector<absl::Span<const Collective>> runs;
    if (rank.rank() == 0) {
      runs = {all.subspan(0, cut), all.subspan(2, 1), all.subspan(3, 1)};
    } else {
      runs = {all.subspan(0, cut), all.subspan(cut, 3)};
    }
    for (const absl::Span<const Collective> run : runs) {
      const auto completion = rank.Run(run);
      ASSERT_TRUE(completion.ok()) << completion.status();
      ExpectOk(WaitFor(*completion, run[0], Deadline(kTimeout)).status());
    }
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(
          SameBytes(rank.OnHost(tensors[static_cast<size_t>(i)]), Bytes(DType::kUInt16, 100, i)))
          << i;
    }
  });
}

// Far more than have places on the board.
TEST(NcclBackendTest, RanksMaySendManyMessagesBeforeTheyReceiveAny) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();  // Likewise.
  constexpr int kMessages = 10 * static_cast<int>(nccl::FingerprintBoard::kMessages) + 7;
  RunGroup(2, [](Rank& rank) {
    const int peer = 1 - rank.rank();
    std::vector<Tensor> out, in;
    std::vector<std::shared_ptr<Completion::Handle>> handles;
    const auto run = [&](const Collective& call) {
      const auto completion = rank.Run({call}, handles.size());
      ASSERT_TRUE(completion.ok()) << completion.status();
      handles.push_back(completion->handle());
    };
    for (int i = 0; i < kMessages; ++i) {
      out.push_back(rank.OnDevice(Bytes(DType::kUInt8, 5, 1000 * rank.rank() + i)));
      in.push_back(rank.OnDevice(Tensor::Zeros(DType::kUInt8, {5})));
    }
    for (const Tensor& tensor : out) run(Collective::Send(tensor, peer));
    for (const Tensor& tensor : in) run(Collective::Recv(tensor, peer));
    for (const auto& handle : handles) {
      ASSERT_NE(handle, nullptr);
      ExpectOk(handle->Wait(Deadline(kTimeout)).status());
    }
    for (int i = 0; i < kMessages; ++i) {
      EXPECT_TRUE(SameBytes(rank.OnHost(in[static_cast<size_t>(i)]),
                            Bytes(DType::kUInt8, 5, 1000 * peer + i)))
          << i;
    }
  });
}

TEST(NcclBackendTest, AMismatchOfAMessageThatHadNoPlaceIsFound) {
  constexpr int kMessages = 3 * static_cast<int>(nccl::FingerprintBoard::kMessages);
  constexpr int kWrong = kMessages - 2;
  RunGroup(2, [](Rank& rank) {
    const Tensor four = rank.OnDevice(Tensor::Zeros(DType::kInt32, {4}));
    const Tensor five = rank.OnDevice(Tensor::Zeros(DType::kInt32, {5}));
    std::vector<std::shared_ptr<Completion::Handle>> handles;
    absl::Status status;
    for (uint64_t i = 0; i < kMessages && status.ok(); ++i) {
      const Collective call = rank.rank() == 0 ? Collective::Send(i == kWrong ? five : four, 1)
                                               : Collective::Recv(four, 0);
      const auto completion = rank.Run({call}, i);
      status = completion.status();
      if (completion.ok()) handles.push_back(completion->handle());
    }
    size_t good = 0;
    for (const auto& handle : handles) {
      const absl::Status outcome = handle->Wait(Deadline(kTimeout)).status();
      if (outcome.ok()) {
        ++good;
      } else if (status.ok()) {
        status = outcome;
      }
    }
    EXPECT_LE(good, size_t{kWrong});
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr("rank 0 called send #190 to rank 1 (int32, 5 elements"),
                      HasSubstr("rank 1 called recv #190 from rank 0 (int32, 4 elements")));
  });
}

// Device 0 and 2, or 1 and 3: which of the two a message is on the other end does not know.
TEST(NcclBackendTest, MessagesOfSeveralDevicesMatchInTheirOrder) {
  if (Runtime().device_count() < 4) GTEST_SKIP() << "needs two devices for each rank";
  constexpr int kMessages = 12;
  RunGroup(2, [](Rank& rank) {
    const int peer = 1 - rank.rank();
    const auto device = [&](bool is_first) {
      return Device{DeviceType::kCuda, rank.rank() + (is_first ? 0 : 2)};
    };
    std::vector<Tensor> out, in;
    std::vector<std::shared_ptr<Completion::Handle>> handles;
    const auto run = [&](absl::Span<const Collective> calls) {
      const auto completion = rank.Run(calls, handles.size());
      ASSERT_TRUE(completion.ok()) << completion.status();
      handles.push_back(completion->handle());
    };
    for (int i = 0; i < kMessages; ++i) {
      out.push_back(rank.OnDevice(Bytes(DType::kInt32, 1000, 100 * rank.rank() + i),
                                  device(i % 2 == rank.rank())));
      in.push_back(rank.OnDevice(Tensor::Zeros(DType::kInt32, {1000}), device(i % 3 == 0)));
    }
    // Some by themselves, and the others together.
    for (int i = 0; i < kMessages / 2; ++i) {
      run({Collective::Send(out[static_cast<size_t>(i)], peer)});
    }
    for (int i = 0; i < kMessages / 2; ++i) {
      run({Collective::Recv(in[static_cast<size_t>(i)], peer)});
    }
    std::vector<Collective> rest;
    for (size_t i = kMessages / 2; i < kMessages; ++i) {
      rest.push_back(Collective::Send(out[i], peer));
      rest.push_back(Collective::Recv(in[i], peer));
    }
    run(rest);
    for (const auto& handle : handles) ExpectOk(handle->Wait(Deadline(kTimeout)).status());
    for (int i = 0; i < kMessages; ++i) {
      EXPECT_TRUE(SameBytes(rank.OnHost(in[static_cast<size_t>(i)]),
                            Bytes(DType::kInt32, 1000, 100 * peer + i)))
          << i;
    }
  });
}

// Neither end waits for the other's first message to learn of its device.
TEST(NcclBackendTest, RanksThatHaveUsedSeveralDevicesMayBothSendFirst) {
  if (Runtime().device_count() < 4) GTEST_SKIP() << "needs two devices for each rank";
  RunGroup(2, [](Rank& rank) {
    const int peer = 1 - rank.rank();
    const Device other = {DeviceType::kCuda, rank.rank() + 2};
    const Tensor tensor = rank.OnDevice(Bytes(DType::kInt32, 10, rank.rank()));
    const Tensor elsewhere = rank.OnDevice(Tensor::Zeros(DType::kInt32, {10}), other);
    ExpectOk(rank.RunAndWait(Collective::Broadcast(tensor, 0)).status());
    ExpectOk(rank.RunAndWait(Collective::Broadcast(elsewhere, 0), 1).status());
    const auto sent = rank.Run({Collective::Send(tensor, peer)}, 2);
    ASSERT_TRUE(sent.ok()) << sent.status();
    ExpectOk(rank.RunAndWait(Collective::Recv(elsewhere, peer), 3).status());
    ExpectOk(sent->handle()->Wait(Deadline(kTimeout)).status());
    EXPECT_TRUE(SameBytes(rank.OnHost(elsewhere), Bytes(DType::kInt32, 10, 0)));
  });
}

TEST(NcclBackendTest, ListsOfOneRunDoNotShareTheirMemory) {
  RunGroup(3, [](Rank& rank) {
    // Outputs that are not one block, so that each gather goes through memory of the backend.
    std::vector<std::vector<Tensor>> outputs(2);
    std::vector<Tensor> inputs;
    for (int call = 0; call < 2; ++call) {
      inputs.push_back(rank.OnDevice(Bytes(DType::kInt32, 1000, 10 * call + rank.rank())));
      for (int i = 0; i < 3; ++i) {
        outputs[call].push_back(rank.OnDevice(Tensor::Zeros(DType::kInt32, {1000})));
      }
    }
    const Collective calls[] = {Collective::AllGather(outputs[0], inputs[0]),
                                Collective::AllGather(outputs[1], inputs[1])};
    const auto completion = rank.Run(calls);
    ASSERT_TRUE(completion.ok()) << completion.status();
    ExpectOk(WaitFor(*completion, calls[0], Deadline(kTimeout)).status());
    for (int call = 0; call < 2; ++call) {
      for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(SameBytes(rank.OnHost(outputs[call][static_cast<size_t>(i)]),
                              Bytes(DType::kInt32, 1000, 10 * call + i)));
      }
    }
  });
}

TEST(NcclBackendTest, ARankMayBeAheadByAsManyCallsAsTheBoardHolds) {
  constexpr int kCalls = 3 * static_cast<int>(nccl::FingerprintBoard::kCalls);
  std::atomic<int> ahead{0};
  Countdown is_full(1);
  RunGroup(2, [&](Rank& rank) {
    const Tensor tensor = rank.OnDevice(Tensor::Zeros(DType::kInt32, {10}));
    ExpectOk(rank.RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum)).status());
    if (rank.rank() == 1) {
      is_full.Wait();
      // The first was before these; and rank 0 counts a call once it has returned.
      EXPECT_LE(ahead.load(), static_cast<int>(nccl::FingerprintBoard::kCalls));
    }
    std::vector<std::shared_ptr<Completion::Handle>> handles;
    for (int i = 0; i < kCalls; ++i) {
      const auto completion =
          rank.Run({Collective::AllReduce(tensor, ReduceOp::kMax)}, static_cast<uint64_t>(i) + 1);
      ASSERT_TRUE(completion.ok()) << completion.status();
      handles.push_back(completion->handle());
      if (rank.rank() == 0 && ++ahead == static_cast<int>(nccl::FingerprintBoard::kCalls)) {
        is_full.Step();
      }
    }
    for (const auto& handle : handles) ExpectOk(handle->Wait(Deadline(kTimeout)).status());
  });
}

// In the tests of failures all ranks meet (have_met) before the call that fails the group: it would
// also fail an earlier call for a rank that has not returned from that yet.

TEST(NcclBackendTest, AMismatchEndsWorkThatNeverWouldOnAllRanksSoon) {
  Countdown have_met(3);
  RunGroup(3, [&](Rank& rank) {
    const Tensor tensor = rank.OnDevice(Tensor::Zeros(DType::kFloat32, {1000}));
    ExpectOk(rank.RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum)).status());
    ExpectOk(rank.RunAndWait(Collective::Barrier(), 1).status());
    have_met.StepAndWait();
    const absl::Time start = absl::Now();
    // Rank 2 has another root; NCCL does not find that out.
    const Collective call = Collective::Broadcast(tensor, rank.rank() == 2 ? 1 : 0);
    const auto completion = rank.Run({call}, 2);
    absl::Status status = completion.status();  // It may be found at once.
    if (status.ok()) {
      // A stream that waits for the work goes on when the work has been ended.
      completion->handle()->EnqueueWait(rank.stream()).IgnoreError();
      ExpectOk(rank.Synchronize());
      status = WaitFor(*completion, call, Deadline(kTimeout)).status();
    }
    EXPECT_LT(absl::Now() - start, kSoon);
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 2 called broadcast #2 (float32, 1000 "
                                                 "elements, root 1)"),
                                       HasSubstr("root 0)")));
    EXPECT_EQ(rank.Run({Collective::Broadcast(tensor, 0)}, 3).status(), status);
  });
}

TEST(NcclBackendTest, AnErrorOfNcclAtOneRankIsTheErrorOfAll) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  Countdown have_met(3);
  RunGroup(3, [&](Rank& rank) {
    const Tensor tensor = rank.OnDevice(Tensor::Zeros(DType::kFloat32, {1000}));
    ExpectOk(rank.RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum)).status());
    if (rank.rank() == 1) FakeNccl::Get().fail_next("ncclAllReduce", nccl::kNcclSystemError);
    ExpectOk(rank.RunAndWait(Collective::Barrier(), 1).status());
    have_met.StepAndWait();
    const absl::Time start = absl::Now();
    const absl::Status status =
        rank.RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum), 2).status();
    EXPECT_LT(absl::Now() - start, kSoon);
    EXPECT_EQ(KindOf(status), ErrorKind::kBackend) << status;
    EXPECT_THAT(Message(status), HasSubstr("ncclAllReduce failed: "));
  });
}

TEST(NcclBackendTest, AnErrorThatNcclFindsLaterIsTheErrorOfAll) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  Countdown have_met(3), have_called(3);
  RunGroup(3, [&](Rank& rank) {
    const Tensor tensor = rank.OnDevice(Tensor::Zeros(DType::kFloat32, {1000}));
    ExpectOk(rank.RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum)).status());
    // Rank 2's work does not go on; then rank 1's NCCL loses a peer.
    if (rank.rank() == 2) FakeNccl::Get().set_stalled(nullptr, 2, 1);
    ExpectOk(rank.RunAndWait(Collective::Barrier(), 1).status());
    have_met.StepAndWait();
    const auto completion = rank.Run({Collective::AllReduce(tensor, ReduceOp::kSum)}, 2);
    ASSERT_TRUE(completion.ok()) << completion.status();
    have_called.StepAndWait();
    const absl::Time start = absl::Now();
    if (rank.rank() == 1) {
      EXPECT_EQ(FakeNccl::Get().set_async_error(nullptr, 1, nccl::kNcclRemoteError), 1);
    }
    const absl::Status status =
        WaitFor(*completion, Collective::AllReduce(tensor, ReduceOp::kSum), Deadline(kTimeout))
            .status();
    EXPECT_LT(absl::Now() - start, kSoon);
    EXPECT_EQ(KindOf(status), ErrorKind::kBackend) << status;
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr("all_reduce #2"), HasSubstr("NCCL's work failed")));
  });
}

TEST(NcclBackendTest, ACommunicatorThatCannotBeMadeIsTheErrorOfAll) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  Countdown have_met(3);
  RunGroup(3, [&](Rank& rank) {
    const Tensor tensor = rank.OnDevice(Tensor::Zeros(DType::kFloat32, {1000}));
    if (rank.rank() == 2) {
      FakeNccl::Get().fail_next("ncclCommInitRankConfig", nccl::kNcclSystemError);
    }
    ExpectOk(rank.RunAndWait(Collective::Barrier(), 1).status());
    have_met.StepAndWait();
    const absl::Time start = absl::Now();
    const absl::Status status =
        rank.RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum), 2).status();
    EXPECT_LT(absl::Now() - start, kSoon);
    EXPECT_EQ(KindOf(status), ErrorKind::kBackend) << status;
    EXPECT_THAT(Message(status), HasSubstr("ncclCommInitRankConfig failed: "));
  });
}

TEST(NcclBackendTest, WorkThatDoesNotEndIsATimeoutThatSaysThatAllHadArrived) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  Countdown have_met(2);
  RunGroup(2, [&](Rank& rank) {
    const Tensor tensor = rank.OnDevice(Tensor::Zeros(DType::kFloat32, {1000}));
    ExpectOk(rank.RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum)).status());
    if (rank.rank() == 1) FakeNccl::Get().set_stalled(nullptr, 1, 1);
    ExpectOk(rank.RunAndWait(Collective::Barrier(), 1).status());
    have_met.StepAndWait();
    const absl::Status status =
        rank.RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum), 2, absl::Seconds(3))
            .status();
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("all_reduce #2"), HasSubstr("after 3s"),
                                       HasSubstr("all its ranks had arrived")));
  });
}

// What is gathered to `outputs` goes through memory of the backend, as they are no one block.
std::vector<Tensor> SeparateOutputs(Rank& rank, int size) {
  std::vector<Tensor> outputs;
  for (int i = 0; i < size; ++i) {
    outputs.push_back(rank.OnDevice(Tensor::Zeros(DType::kInt32, {1000})));
  }
  return outputs;
}

// Rank 0 enqueues a call that ends by itself, which has memory of the backend, and a message that
// rank 1 does not receive. `begins` is given the former's handle before the device begins it. Rank
// 1 leaves once `awaits` has returned, which rank 0 must hear; `heard` follows.
void LosePeer(const std::function<void(Completion::Handle& first)>& begins,
              const std::function<void()>& awaits, const std::function<void()>& heard) {
  Countdown may_abort(1);
  RunGroup(2, [&](Rank& rank) {
    const Tensor input = rank.OnDevice(Numbers(DType::kInt32, 1000, rank.rank()));
    const Tensor message = rank.OnDevice(Numbers(DType::kInt32, 1 << 21, 5));
    // Makes the communicators.
    ExpectOk(rank.RunAndWait(Collective::AllReduce(input, ReduceOp::kSum)).status());
    ExpectOk(
        rank.RunAndWait(
                rank.rank() == 0 ? Collective::Send(message, 1) : Collective::Recv(message, 0), 1)
            .status());
    const std::vector<std::vector<Tensor>> outputs = {SeparateOutputs(rank, 2),
                                                      SeparateOutputs(rank, 2)};
    const Collective gathers[] = {Collective::AllGather(outputs[0], input),
                                  Collective::AllGather(outputs[1], input)};
    if (rank.rank() == 1) {
      const auto completion = rank.Run(gathers, 2);
      ASSERT_TRUE(completion.ok()) << completion.status();
      may_abort.Wait();
      rank.backend().Abort(BackendError("it has had enough"));
      // The device may still write to the outputs.
      completion->handle()->Wait(Deadline(kTimeout)).IgnoreError();
      return;
    }
    std::shared_ptr<Completion::Handle> second;
    {
      const HeldStreams held(0);
      const auto first = rank.Run(gathers, 2);
      ASSERT_TRUE(first.ok()) << first.status();
      begins(*first->handle());
      const auto sent = rank.Run({Collective::Send(message, 1)}, 3);
      ASSERT_TRUE(sent.ok()) << sent.status();
      second = sent->handle();
    }
    awaits();
    may_abort.Step();
    const absl::Status status = second->Wait(Deadline(kTimeout)).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kBackend) << status;
    EXPECT_THAT(Message(status), HasSubstr("it has had enough"));
    heard();
  });
}

TEST(NcclBackendTest, MemoryThatComesBackLateDoesNotKeepACallThatHasLostItsPeer) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  const device::WaitingFrees waiting;
  const device::FakeCuda& cuda = device::FakeCuda::Get();
  int64_t frees = 0;
  LosePeer([&](Completion::Handle&) { frees = cuda.calls("cuMemFree_v2"); },
           [&] {
             // That of the second all_gather, which waits for the message.
             const Deadline deadline(kTimeout);
             while (cuda.calls("cuMemFree_v2") == frees && !deadline.Expired()) {
               absl::SleepFor(absl::Milliseconds(1));
             }
             EXPECT_GT(cuda.calls("cuMemFree_v2"), frees);
           },
           [] {});
}

// As one that waits for Python's interpreter, which another thread has while it waits for the call.
TEST(NcclBackendTest, ACallBackThatWaitsDoesNotKeepACallThatHasLostItsPeer) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  Countdown begun(1), has_heard(1);
  LosePeer(
      [&](Completion::Handle& first) {
        first.OnDone([&](const absl::StatusOr<int>& outcome) {
          ExpectOk(outcome.status());
          begun.Step();
          has_heard.Wait();
        });
      },
      [&] { begun.Wait(); }, [&] { has_heard.Step(); });
}

// What was let go of while the device may still write to it; a device that does is broken.
class LetGo {
 public:
  void Add(const Tensor& tensor) { owners_.push_back(tensor.owner()); }
  bool IsAnyGone() const {
    return std::any_of(owners_.begin(), owners_.end(),
                       [](const auto& owner) { return owner.expired(); });
  }
  void ExpectAllGone() const {
    const Deadline deadline(kTimeout);
    for (const auto& owner : owners_) {
      while (!owner.expired() && !deadline.Expired()) absl::SleepFor(absl::Milliseconds(1));
      EXPECT_TRUE(owner.expired());
    }
  }

 private:
  std::vector<std::weak_ptr<const void>> owners_;
};

TEST(NcclBackendTest, TensorsOfACallThatHasFailedAreKeptUntilTheDeviceIsDoneWithThem) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  Countdown have_met(2), both_looked(2);
  RunGroup(2, [&](Rank& rank) {
    std::vector<Tensor> outputs = SeparateOutputs(rank, 2);
    Tensor input = rank.OnDevice(Numbers(DType::kInt32, 1000, rank.rank()));
    ExpectOk(rank.RunAndWait(Collective::AllReduce(input, ReduceOp::kSum)).status());
    ExpectOk(rank.RunAndWait(Collective::Barrier(), 1).status());
    have_met.StepAndWait();
    // What the caller's stream does before the call.
    const Tensor before = rank.OnDevice(Numbers(DType::kInt32, 1000, 7));
    LetGo let_go;
    for (const Tensor& output : outputs) let_go.Add(output);
    {
      const HeldStreams held(rank.rank());
      ExpectOk(Runtime().Fill(before.data(), 1, before.nbytes(), rank.stream()));
      bool is_enqueued = false;
      {
        const Collective call = rank.rank() == 0 ? Collective::AllGather(outputs, input)
                                                 : Collective::AllReduce(input, ReduceOp::kMax);
        const auto completion = rank.Run({call}, 2);
        // It may be found at once; then no device has what was given.
        is_enqueued = completion.ok();
        const absl::Status status = completion.ok()
                                        ? WaitFor(*completion, call, Deadline(kTimeout)).status()
                                        : completion.status();
        EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
      }
      outputs.clear();
      input = Tensor();
      // Only rank 0's call has them.
      EXPECT_FALSE(rank.rank() == 0 && is_enqueued && let_go.IsAnyGone());
      both_looked.StepAndWait();
    }
    let_go.ExpectAllGone();
    ExpectOk(rank.Synchronize());
  });
}

TEST(NcclBackendTest, TensorsOfACallThatCannotBeEnqueuedAreKeptUntilTheDeviceIsDoneWithThem) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  Countdown have_met(2), both_looked(2);
  RunGroup(2, [&](Rank& rank) {
    std::vector<Tensor> outputs = SeparateOutputs(rank, 2);
    Tensor input = rank.OnDevice(Numbers(DType::kInt32, 1000, rank.rank()));
    ExpectOk(rank.RunAndWait(Collective::AllReduce(input, ReduceOp::kSum)).status());
    ExpectOk(rank.RunAndWait(Collective::Barrier(), 1).status());
    if (rank.rank() == 0) FakeNccl::Get().fail_next("ncclSend", nccl::kNcclSystemError);
    ExpectOk(rank.RunAndWait(Collective::Barrier(), 2).status());
    have_met.StepAndWait();
    // What the caller's stream does before the call.
    const Tensor before = rank.OnDevice(Numbers(DType::kInt32, 1000, 7));
    LetGo let_go;
    for (const Tensor& output : outputs) let_go.Add(output);
    {
      const HeldStreams held(rank.rank());
      ExpectOk(Runtime().Fill(before.data(), 1, before.nbytes(), rank.stream()));
      {
        // In a scan of two ranks only rank 0 sends. It fails when its all_gather has been enqueued.
        const Collective calls[] = {Collective::AllGather(outputs, input),
                                    Collective::Scan(input, ReduceOp::kSum)};
        const auto completion = rank.Run(calls, 3);
        absl::Status status = completion.status();
        if (completion.ok()) {
          completion->handle()->OnDone([outputs, input](const absl::StatusOr<int>&) {});
          status = completion->handle()->Wait(Deadline(kTimeout)).status();
        }
        EXPECT_EQ(KindOf(status), ErrorKind::kBackend) << status;
      }
      outputs.clear();
      input = Tensor();
      // The other rank may have heard of the error before it enqueued anything; then no device has
      // what it gave.
      EXPECT_FALSE(rank.rank() == 0 && let_go.IsAnyGone());
      both_looked.StepAndWait();
    }
    let_go.ExpectAllGone();
    ExpectOk(rank.Synchronize());
  });
}

// SYNCLINE_STALL_WARNING, which is read once, is short in this program.
TEST(NcclBackendTest, ALongWaitIsReportedWithWhoIsMissing) {
  Countdown warned(1);
  absl::Mutex mutex;
  std::string warning;
  SetLogSink([&](LogLevel, absl::string_view line) {
    if (!absl::StrContains(line, " has waited for ")) return;
    absl::MutexLock lock(&mutex);
    if (!warning.empty()) return;  // Later a rank may wait for the other to end its call.
    warning = std::string(line);
    warned.Step();
  });
  RunGroup(2, [&](Rank& rank) {
    const Tensor tensor = rank.OnDevice(Tensor::Zeros(DType::kFloat32, {10}));
    if (rank.rank() == 1) warned.Wait();
    ExpectOk(rank.RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum), 3).status());
  });
  SetLogSink(nullptr);
  EXPECT_THAT(warning,
              AllOf(HasSubstr("in all_reduce #3 (float32, 10 elements, sum); missing: "),
                    HasSubstr("rank 1 "), HasSubstr("it is in no operation of this group")));
}

TEST(NcclBackendTest, ADestroyedBackendEndsItsOwnWorkFirst) {
  RunGroup(2, [](Rank& rank) {
    const Tensor tensor = rank.OnDevice(Numbers(DType::kInt32, 1000, rank.rank()));
    const auto completion = rank.Run({Collective::AllReduce(tensor, ReduceOp::kSum)});
    ASSERT_TRUE(completion.ok()) << completion.status();
    rank.Destroy();
    ExpectOk(WaitFor(*completion, Collective::AllReduce(tensor, ReduceOp::kSum),
                     Deadline(absl::ZeroDuration()))
                 .status());
    const int seeds[] = {0, 1};
    ExpectOk(CheckReduced(rank.OnHost(tensor), ReduceOp::kSum, seeds));
  });
}

// NCCL has a communicator for each device of a rank, and ranks tell them apart by their order.
TEST(NcclBackendTest, RanksThatChangeTheirDevicesInOtherOrdersAreAMismatchThatQuotesBoth) {
  if (Runtime().device_count() < 4) GTEST_SKIP() << "needs two devices for each rank";
  RunGroup(2, [](Rank& rank) {
    const Tensor host = Numbers(DType::kInt32, 100, rank.rank());
    const std::vector<Tensor> tensors = {
        rank.OnDevice(host, {DeviceType::kCuda, 2 * rank.rank()}),
        rank.OnDevice(host, {DeviceType::kCuda, 2 * rank.rank() + 1})};
    for (const int device : {0, 1, 0}) {
      const Collective sum = Collective::AllReduce(tensors[device], ReduceOp::kSum);
      ExpectOk(rank.RunAndWait(sum, device).status());
    }
    const Collective sum = Collective::AllReduce(tensors[rank.rank()], ReduceOp::kSum);
    const absl::Status status = rank.RunAndWait(sum, 3, absl::Seconds(10)).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(
        Message(status),
        AllOf(HasSubstr("rank 0 called all_reduce #3 (int32, 100 elements, sum) on cuda:0, the "
                        "first device that it has used"),
              HasSubstr("rank 1 called all_reduce #3 (int32, 100 elements, sum) on cuda:3, the "
                        "second device that it has used")));
  });
}

// Runs with a driver that loads our kernels, and with one that is too old for them.
TEST(NcclBackendTest, WithoutKernelsReductionsThatNcclLacksAreRefusedAndTheOthersServed) {
  const absl::Status kernels =
      (*device::DeviceRuntime::Get())->KernelsOf({DeviceType::kCuda, 0}).status();
  RunGroup(2, [&](Rank& rank) {
    const auto refused = [&](const Tensor& host, ReduceOp op, const std::string& what) {
      const Tensor tensor = rank.OnDevice(host);
      const absl::Status status = rank.RunAndWait(Collective::AllReduce(tensor, op)).status();
      if (kernels.ok()) return ExpectOk(status);
      ExpectUnsupported(status, what);
      EXPECT_THAT(Message(status), HasSubstr(Message(kernels)));
    };
    refused(Numbers(DType::kInt16, 5, 0), ReduceOp::kSum, "the reduction sum of int16");
    refused(Numbers(DType::kInt32, 5, 0), ReduceOp::kBxor, "the reduction bxor of int32");
    const Tensor scanned = rank.OnDevice(Numbers(DType::kFloat32, 5, 0));
    const absl::Status scan = rank.RunAndWait(Collective::Scan(scanned, ReduceOp::kSum)).status();
    kernels.ok() ? ExpectOk(scan) : ExpectUnsupported(scan, "scan");
    const int seeds[] = {0, 1};
    for (const auto& [dtype, op] :
         std::vector<std::pair<DType, ReduceOp>>{{DType::kBool, ReduceOp::kSum},
                                                 {DType::kBool, ReduceOp::kProduct},
                                                 {DType::kComplex64, ReduceOp::kAvg},
                                                 {DType::kInt32, ReduceOp::kAvg},
                                                 {DType::kUInt8, ReduceOp::kAvg},
                                                 {DType::kFloat16, ReduceOp::kAvg}}) {
      const Tensor tensor = rank.OnDevice(Numbers(dtype, 100, rank.rank()));
      ExpectOk(rank.RunAndWait(Collective::AllReduce(tensor, op)).status());
      ExpectOk(CheckReduced(rank.OnHost(tensor), op, seeds));
    }
  });
}

// Runs with devices that are too old for it, too.
TEST(NcclBackendTest, FloatsOfEightBitsAreMovedAndFromNccl224OnReduced) {
  const bool is_too_old = *Runtime().ComputeCapability({DeviceType::kCuda, 0}) < 90;
  const bool reduces = (*nccl::LoadNccl())->version >= nccl::NcclVersion(2, 24, 0) && !is_too_old;
  RunGroup(2, [&](Rank& rank) {
    const Tensor host = Tensor::Zeros(DType::kFloat8E4M3, {3});
    for (int i = 0; i < 3; ++i) host.data_as<uint8_t>()[i] = 0x38;  // 1.
    const Tensor tensor = rank.OnDevice(host);
    ExpectOk(rank.RunAndWait(Collective::Broadcast(tensor, 1)).status());
    const Collective sum = Collective::AllReduce(tensor, ReduceOp::kSum);
    if (!reduces) {
      ExpectUnsupported(rank.Run({sum}, 1).status(),
                        is_too_old ? "compute capability 9.0 or later, and cuda:"
                                   : "need all ranks to have NCCL 2.24 or later, and rank 0 (");
      // The group goes on.
      ExpectOk(rank.RunAndWait(Collective::Broadcast(tensor, 0), 2).status());
      return;
    }
    ExpectOk(rank.RunAndWait(sum, 1).status());
    const Tensor sums = rank.OnHost(tensor);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(sums.data_as<uint8_t>()[i], 0x40);  // 2.
    ExpectUnsupported(rank.Run({Collective::Scan(tensor, ReduceOp::kSum)}, 2).status(), "scan");
  });
}

// A graph of what is enqueued on the rank's stream between Begin and End, in the mode in which
// CUDA forbids the most to all threads.
class Graph {
 public:
  explicit Graph(Rank& rank) : rank_(rank), scope_(Runtime(), rank.stream().device) {}
  ~Graph() { Destroy(); }

  void Begin() {
    constexpr int kGlobal = 0;
    EXPECT_EQ(
        (cuda_.Driver<int(void*, int)>("cuStreamBeginCapture_v2")(rank_.stream().handle, kGlobal)),
        0);
  }
  // The driver's result.
  int End() {
    return cuda_.Driver<int(void*, void**)>("cuStreamEndCapture")(rank_.stream().handle, &graph_);
  }
  void Instantiate() {
    ASSERT_EQ((cuda_.Driver<int(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags")(
                  &executable_, graph_, 0)),
              0);
  }
  void Launch() {
    ASSERT_EQ(
        (cuda_.Driver<int(void*, void*)>("cuGraphLaunch")(executable_, rank_.stream().handle)), 0);
  }
  void Destroy() {
    if (executable_ != nullptr) {
      EXPECT_EQ(cuda_.Driver<int(void*)>("cuGraphExecDestroy")(executable_), 0);
    }
    if (graph_ != nullptr) {
      EXPECT_EQ(cuda_.Driver<int(void*)>("cuGraphDestroy")(graph_), 0);
    }
    executable_ = graph_ = nullptr;
  }

 private:
  const device::FakeCuda& cuda_ = device::FakeCuda::Get();
  Rank& rank_;
  const DeviceRuntime::ContextScope scope_;
  void *graph_ = nullptr, *executable_ = nullptr;
};

// Captures what `enqueue` enqueues on the rank's stream, and launches it `times` times.
void Replay(Rank& rank, int times, const std::function<void()>& enqueue) {
  Graph graph(rank);
  graph.Begin();
  enqueue();
  ASSERT_EQ(graph.End(), 0);
  graph.Instantiate();
  for (int i = 0; i < times; ++i) graph.Launch();
  ExpectOk(rank.Synchronize());
}

TEST(NcclBackendTest, ACapturedCallIsDoneAtOnceAndIsReplayed) {
  RunGroup(2, [](Rank& rank) {
    const Tensor ones = rank.OnDevice(Tensor::Zeros(DType::kInt32, {100}));
    ExpectOk(rank.RunAndWait(Collective::AllReduce(ones, ReduceOp::kSum)).status());
    const Tensor host = Tensor::Zeros(DType::kInt32, {100});
    for (int i = 0; i < 100; ++i) host.data_as<int32_t>()[i] = i + rank.rank();
    const Tensor tensor = rank.OnDevice(host);
    Replay(rank, 3, [&] {
      const auto completion = rank.Run({Collective::AllReduce(tensor, ReduceOp::kSum)}, 1);
      ASSERT_TRUE(completion.ok()) << completion.status();
      EXPECT_EQ(completion->handle(), nullptr);
    });
    const Tensor result = rank.OnHost(tensor);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(result.data_as<int32_t>()[i], 4 * (2 * i + 1));
  });
}

// The operations on tensors of a rank's own, each with what it moves or reduces.
struct Operands {
  explicit Operands(Rank& rank, int size) {
    const auto add = [&](DType dtype) {
      tensors.push_back(rank.OnDevice(Numbers(dtype, 50, rank.rank())));
      return tensors.back();
    };
    const auto list = [&] {
      const size_t first = tensors.size();
      for (int i = 0; i < size; ++i) {
        add(DType::kFloat32);
        add(DType::kUInt8);  // A gap.
      }
      std::vector<Tensor> all;
      for (size_t i = first; i < tensors.size(); i += 2) all.push_back(tensors[i]);
      lists.push_back(std::make_unique<std::vector<Tensor>>(std::move(all)));
      return absl::MakeConstSpan(*lists.back());
    };
    const auto one = [&](DType dtype) -> const Tensor& {
      singles.push_back(std::make_unique<Tensor>(add(dtype)));
      return *singles.back();
    };
    const int peer = 1 - rank.rank();
    const auto none = absl::Span<const Tensor>();
    const bool is_root = rank.rank() == 0;
    calls = {
        Collective::AllReduce(one(DType::kFloat32), ReduceOp::kSum),
        Collective::AllReduce(one(DType::kInt32), ReduceOp::kAvg),  // And a division.
        Collective::AllReduce(one(DType::kInt16), ReduceOp::kSum),  // By kernels.
        Collective::Reduce(one(DType::kFloat32), ReduceOp::kMax, 1),
        Collective::Broadcast(one(DType::kFloat32), 1),
        Collective::AllGather(list(), one(DType::kFloat32)),
        Collective::ReduceScatter(one(DType::kFloat32), list(), ReduceOp::kSum),
        Collective::Gather(is_root ? list() : none, one(DType::kFloat32), 0),
        Collective::Scatter(one(DType::kFloat32), is_root ? list() : none, 0),
        Collective::AllToAll(list(), list()),
        Collective::Scan(one(DType::kFloat32), ReduceOp::kSum),
        Collective::Exscan(one(DType::kFloat32), ReduceOp::kSum),
        is_root ? Collective::Send(one(DType::kFloat32), peer)
                : Collective::Recv(one(DType::kFloat32), peer),
    };
  }

  std::vector<Tensor> tensors;
  std::vector<std::unique_ptr<Tensor>> singles;
  std::vector<std::unique_ptr<std::vector<Tensor>>> lists;
  std::vector<Collective> calls;
};

TEST(NcclBackendTest, EveryOperationCanBeCapturedAloneAndWithOthers) {
  RunGroup(2, [](Rank& rank) {
    uint64_t sequence = 0;
    Operands eager(rank, 2), alone(rank, 2), together(rank, 2);
    for (const Collective& call : eager.calls) {
      ExpectOk(rank.RunAndWait(call, sequence++).status());
    }
    Replay(rank, 1, [&] {
      for (const Collective& call : alone.calls) {
        const auto completion = rank.Run({call}, sequence++);
        ASSERT_TRUE(completion.ok()) << completion.status();
        EXPECT_EQ(completion->handle(), nullptr);
      }
    });
    Replay(rank, 1, [&] {
      const auto completion = rank.Run(together.calls, sequence++);
      ASSERT_TRUE(completion.ok()) << completion.status();
    });
    for (size_t i = 0; i < eager.tensors.size(); ++i) {
      const Tensor expected = rank.OnHost(eager.tensors[i]);
      EXPECT_TRUE(SameBytes(rank.OnHost(alone.tensors[i]), expected)) << i;
      EXPECT_TRUE(SameBytes(rank.OnHost(together.tensors[i]), expected)) << i;
    }
  });
}

TEST(NcclBackendTest, RanksThatCaptureMessagesTogetherMayBothSendFirst) {
  constexpr int64_t kCount = 1 << 21;  // More than is on the way.
  RunGroup(2, [](Rank& rank) {
    const int peer = 1 - rank.rank();
    const Tensor sent = rank.OnDevice(Numbers(DType::kInt32, kCount, rank.rank()));
    const Tensor received = rank.OnDevice(Numbers(DType::kInt32, kCount, 7));
    Replay(rank, 1, [&] {
      const auto completion =
          rank.Run({Collective::Send(sent, peer), Collective::Recv(received, peer)}, 0);
      ASSERT_TRUE(completion.ok()) << completion.status();
    });
    EXPECT_TRUE(SameBytes(rank.OnHost(received), Numbers(DType::kInt32, kCount, peer)));
  });
}

TEST(NcclBackendTest, CallsOutsideOfAGraphGoOnWhileItIsCaptured) {
  RunGroup(2, [](Rank& rank) {
    const auto constant = [&](int32_t value) {
      const Tensor host = Tensor::Zeros(DType::kInt32, {100});
      for (int i = 0; i < 100; ++i) host.data_as<int32_t>()[i] = value;
      return rank.OnDevice(host);
    };
    const auto first_of = [&](const Tensor& tensor) {
      return rank.OnHost(tensor).data_as<int32_t>()[0];
    };
    const Tensor captured = constant(1), second = constant(1), eager = constant(1);
    const auto side = Runtime().MakeStream(rank.stream().device).value();
    const auto run_eagerly = [&](uint64_t sequence) {
      const Collective call = Collective::AllReduce(eager, ReduceOp::kSum);
      const auto completion = rank.RunOn(*side, {call}, sequence);
      ASSERT_TRUE(completion.ok()) << completion.status();
      ExpectOk(WaitFor(*completion, call, Deadline(kTimeout)).status());
    };
    Graph graph(rank), other(rank);
    graph.Begin();
    ExpectOk(rank.Run({Collective::AllReduce(captured, ReduceOp::kSum)}, 0).status());
    run_eagerly(1);
    std::thread([&] { run_eagerly(2); }).join();
    ExpectOk(rank.Run({Collective::AllReduce(captured, ReduceOp::kSum)}, 3).status());
    ASSERT_EQ(graph.End(), 0);
    graph.Instantiate();
    other.Begin();
    ExpectOk(rank.Run({Collective::AllReduce(second, ReduceOp::kSum)}, 4).status());
    ASSERT_EQ(other.End(), 0);
    other.Instantiate();
    // Nothing of the graphs has been done yet.
    EXPECT_EQ(first_of(captured), 1);
    EXPECT_EQ(first_of(eager), 4);
    graph.Launch();
    other.Launch();
    // A launch is ordered with calls on other streams by whoever makes them.
    ExpectOk(rank.Synchronize());
    run_eagerly(5);
    graph.Launch();
    ExpectOk(rank.Synchronize());
    EXPECT_EQ(first_of(captured), 16);
    EXPECT_EQ(first_of(second), 2);
    EXPECT_EQ(first_of(eager), 8);
  });
}

TEST(NcclBackendTest, ACaptureThatIsGivenUpDoesNoHarmToTheGroup) {
  RunGroup(2, [](Rank& rank) {
    const Tensor tensor = rank.OnDevice(Numbers(DType::kInt32, 100, rank.rank()));
    {
      Graph graph(rank);
      graph.Begin();
      ExpectOk(rank.Run({Collective::AllReduce(tensor, ReduceOp::kSum)}, 0).status());
      // Not allowed in a capture: as where the user's code fails.
      EXPECT_NE(
          (device::FakeCuda::Get().Driver<int(void*)>("cuStreamSynchronize")(rank.stream().handle)),
          0);
      EXPECT_NE(graph.End(), 0);
    }
    ExpectOk(rank.RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum), 1).status());
    const int seeds[] = {0, 1};
    ExpectOk(CheckReduced(rank.OnHost(tensor), ReduceOp::kSum, seeds));
  });
}

// NCCL does not end a communicator before the graphs that were captured from it.
TEST(NcclBackendTest, ARankLeavesSoonThoughItsGraphsLive) {
  Countdown have_left(2), are_destroyed(2);
  RunGroup(2, [&](Rank& rank) {
    const Tensor tensor = rank.OnDevice(Numbers(DType::kInt16, 100, rank.rank()));
    Graph graph(rank);
    graph.Begin();
    // Uses memory of the backend at each launch.
    ExpectOk(rank.Run({Collective::AllReduce(tensor, ReduceOp::kSum)}, 0).status());
    ASSERT_EQ(graph.End(), 0);
    graph.Instantiate();
    graph.Launch();
    ExpectOk(rank.Synchronize());
    FakeNccl::Get().hold_aborts(1);
    const absl::Time start = absl::Now();
    rank.Destroy();
    EXPECT_LT(absl::Now() - start, kSoon);
    have_left.StepAndWait();
    graph.Destroy();
    are_destroyed.StepAndWait();
    FakeNccl::Get().hold_aborts(0);
    // The thread that NCCL has kept gives back all that is left: RunGroup awaits that.
  });
}

TEST(NcclBackendTest, CapturedCallsThatDifferAreAMismatchAtCapture) {
  Countdown have_met(2);
  RunGroup(2, [&](Rank& rank) {
    const Tensor tensor = rank.OnDevice(Tensor::Zeros(DType::kInt32, {100}));
    ExpectOk(rank.RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum)).status());
    ExpectOk(rank.RunAndWait(Collective::Barrier(), 1).status());
    have_met.StepAndWait();
    const device::FakeCuda& cuda = device::FakeCuda::Get();
    const DeviceRuntime::ContextScope scope(Runtime(), rank.stream().device);
    ASSERT_EQ((cuda.Driver<int(void*, int)>("cuStreamBeginCapture_v2")(rank.stream().handle, 1)),
              0);
    const ReduceOp op = rank.rank() == 0 ? ReduceOp::kSum : ReduceOp::kMax;
    EXPECT_EQ(KindOf(rank.Run({Collective::AllReduce(tensor, op)}, 2).status()),
              ErrorKind::kMismatch);
    void* graph = nullptr;  // None, or one that nobody launches.
    cuda.Driver<int(void*, void**)>("cuStreamEndCapture")(rank.stream().handle, &graph);
    if (graph != nullptr) {
      EXPECT_EQ(cuda.Driver<int(void*)>("cuGraphDestroy")(graph), 0);
    }
  });
}

// The last: a device that has failed stays so, as with CUDA.
TEST(NcclBackendTest, ADeviceThatFailsIsTheErrorOfAll) {
  SYNCLINE_REQUIRE_SIMULATED_DEVICES();
  const auto store = std::make_shared<HashStore>();
  Countdown have_met(3), failed(3);
  RunRanks(3, [&](int number) -> absl::Status {
    auto rank = Rank::Join(store, number, 3).value();
    const Tensor tensor = rank->OnDevice(Tensor::Zeros(DType::kFloat32, {1000}));
    ExpectOk(rank->RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum)).status());
    ExpectOk(rank->RunAndWait(Collective::Barrier(), 1).status());
    have_met.StepAndWait();
    // Rank 2's work is under way when its device fails.
    if (number == 2) FakeNccl::Get().set_stalled(nullptr, 2, 1);
    const Collective call = Collective::AllReduce(tensor, ReduceOp::kSum);
    const auto completion = rank->Run({call}, 2);
    if (number == 2) device::FakeCuda::Get().break_device(2, 700);
    const absl::Time start = absl::Now();
    const absl::Status status =
        completion.ok() ? WaitFor(*completion, call, Deadline(kTimeout)).status()
                        : completion.status();  // If another rank's part in it has failed before.
    EXPECT_LT(absl::Now() - start, kSoon);
    EXPECT_EQ(KindOf(status), ErrorKind::kBackend) << status;
    failed.StepAndWait();
    const absl::Time end = absl::Now();
    rank->Destroy();
    EXPECT_LT(absl::Now() - end, kSoon);
    return absl::OkStatus();
  });
  device::FakeCuda::Get().break_device(2, 0);
}

}  // namespace
}  // namespace syncline
