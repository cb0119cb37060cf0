// Ranks of one host that read each other's ordinary memory by CMA, and what happens where the
// kernel does not let them. BUILD sets SYNCLINE_SHM_TUNING so that all data but the shortest go
// that way.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/shm/cross_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/hash_store.h"
#include "syncline/info.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"
#include "tests/backends/shared_calls.h"
#include "tests/backends/shm_ranks.h"
#include "tests/support/backend_config.h"
#include "tests/support/page_trap.h"
#include "tests/support/ranks.h"

namespace {

// Reads of data that the kernel has made, and refused.
std::atomic<int> reads{0}, refusals{0};

}  // namespace

// In place of libc's.
extern "C" ssize_t process_vm_readv(pid_t pid, const iovec* local, unsigned long local_count,
                                    const iovec* remote, unsigned long remote_count,
                                    unsigned long flags) noexcept {
  const ssize_t moved =
      syscall(SYS_process_vm_readv, pid, local, local_count, remote, remote_count, flags);
  size_t wanted = 0;
  for (unsigned long i = 0; i < local_count; ++i) wanted += local[i].iov_len;
  // The reads of a number alone are those with which ranks find out whether they can.
  if (wanted > sizeof(uint64_t)) ++(moved == static_cast<ssize_t>(wanted) ? reads : refusals);
  return moved;
}

namespace syncline {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kPart = 256 << 10;  // Bytes of what one rank has for another.
constexpr int kReader = 0, kOwner = 1;

absl::StatusOr<std::shared_ptr<Backend>> Join(std::shared_ptr<Store> store, int rank, int size) {
  return BackendRegistry::Make("shm", OnLoopback(std::move(store), rank, size, kTimeout));
}

// From now on the kernel refuses this thread the memory of other processes.
void LoseCma() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

// Sends all that this rank brings to the next one, and receives from the one before.
absl::Status PassOn(const SharedBuffers& buffers, int rank, int size, Backend& backend,
                    const CallContext& context) {
  absl::Status sent;
  std::thread sender([&] {
    sent = RunAndWait(backend, Collective::Send(buffers.own, (rank + 1) % size), context).status();
  });
  const absl::Status received =
      RunAndWait(backend, Collective::Recv(buffers.result, (rank + size - 1) % size), context)
          .status();
  sender.join();
  return received.ok() ? sent : received;
}

// One rank makes each call, with new values, and looks at the results.
absl::Status MakeAllCalls(int rank, int size, Backend& backend, uint64_t first) {
  const SharedBuffers buffers(size, kPart);
  uint64_t sequence = first;
  for (const OpKind kind : SharedCalls()) {
    std::vector<uint8_t> values;
    for (int r = 0; r < size; ++r) values.push_back(static_cast<uint8_t>(10 * sequence + r));
    buffers.Fill(values[rank]);
    const int root = static_cast<int>(sequence) % size;
    const CallContext context = {sequence++, Deadline(kTimeout)};
    SYNCLINE_RETURN_IF_ERROR(
        Annotate(RunShared(kind, buffers, root, backend, context), Name(kind)));
    SYNCLINE_RETURN_IF_ERROR(Annotate(CheckShared(kind, buffers, root, rank, values), Name(kind)));
  }
  buffers.Fill(static_cast<uint8_t>(100 + rank));
  SYNCLINE_RETURN_IF_ERROR(PassOn(buffers, rank, size, backend, {sequence, Deadline(kTimeout)}));
  return CheckAll(buffers.result, static_cast<uint8_t>(100 + (rank + size - 1) % size));
}

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

void ResetCounts() { reads = refusals = 0; }

class ShmCmaTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { ResetCounts(); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, ShmCmaTest, testing::Values(2, 3, 7),
                         testing::PrintToStringParamName());

TEST_P(ShmCmaTest, EveryRankCanReadEveryOther) {
  shm::ShmRanks ranks(GetParam());
  shm::AdaptiveCopier copier;
  for (int rank = 0; rank < GetParam(); ++rank) {
    EXPECT_TRUE(ranks.group(rank).cross_memory().CanReadAll());
    EXPECT_TRUE(ranks.group(rank).OffersAddress(OpKind::kBroadcast, kPart, copier));
  }
}

TEST_P(ShmCmaTest, AllDataArrive) {
  const int size = GetParam();
  const auto store = std::make_shared<HashStore>();
  ExpectAllOk(RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store, rank, size));
    SYNCLINE_RETURN_IF_ERROR(MakeAllCalls(rank, size, *backend, 0));
    return MakeAllCalls(rank, size, *backend, 20);
  }));
  // In each call at least one rank has read.
  EXPECT_GE(reads, 2 * static_cast<int>(SharedCalls().size() + 1));
  EXPECT_EQ(refusals, 0);
}

TEST_P(ShmCmaTest, WhereOneRankMayNotReadAllTakeTheRings) {
  const int size = GetParam();
  const auto store = std::make_shared<HashStore>();
  ExpectAllOk(RunRanks(size, [&](int rank) -> absl::Status {
    if (rank == kReader) LoseCma();
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store, rank, size));
    const SharedBuffers buffers(size, kPart);
    std::vector<uint8_t> values;
    for (int r = 0; r < size; ++r) values.push_back(static_cast<uint8_t>(1 + r));
    uint64_t sequence = 0;
    for (const OpKind kind : SharedCalls()) {
      buffers.Fill(values[rank]);
      const CallContext context = {sequence++, Deadline(kTimeout)};
      SYNCLINE_RETURN_IF_ERROR(RunShared(kind, buffers, size - 1, *backend, context));
      SYNCLINE_RETURN_IF_ERROR(CheckShared(kind, buffers, size - 1, rank, values));
    }
    return absl::OkStatus();
  }));
  EXPECT_EQ(reads, 0);
  EXPECT_EQ(refusals, 0);
}

TEST_P(ShmCmaTest, MessagesGoThroughBuffersWhereTheReceiverMayNotRead) {
  const int size = GetParam();
  const auto store = std::make_shared<HashStore>();
  ExpectAllOk(RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store, rank, size));
    LoseCma();
    const SharedBuffers buffers(size, kPart);
    buffers.Fill(static_cast<uint8_t>(1 + rank));
    SYNCLINE_RETURN_IF_ERROR(PassOn(buffers, rank, size, *backend, {0, Deadline(kTimeout)}));
    return CheckAll(buffers.result, static_cast<uint8_t>(1 + (rank + size - 1) % size));
  }));
  EXPECT_EQ(reads, 0);
  EXPECT_EQ(refusals, size);
}

// A call in which no rank may read any more what it could read when the group was made: ranks ask
// each other for everything.
class ShmCmaRefusalTest : public testing::TestWithParam<std::tuple<OpKind, int>> {};
INSTANTIATE_TEST_SUITE_P(All, ShmCmaRefusalTest,
                         testing::Combine(testing::ValuesIn(SharedCalls()),
                                          testing::Values(2, 3, 7)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)), "_",
                                               std::get<1>(info.param));
                         });

TEST_P(ShmCmaRefusalTest, RanksThatMayNoLongerReadGetTheirDataFromTheOwners) {
  const auto [kind, size] = GetParam();
  ResetCounts();
  const auto store = std::make_shared<HashStore>();
  ExpectAllOk(RunRanks(size, [&, kind = kind, size = size](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store, rank, size));
    LoseCma();
    const SharedBuffers buffers(size, kPart);
    // The second call goes through the rings, as the owners have learned.
    for (uint64_t sequence : {0, 1}) {
      std::vector<uint8_t> values;
      for (int r = 0; r < size; ++r) values.push_back(static_cast<uint8_t>(1 + 10 * sequence + r));
      buffers.Fill(values[rank]);
      const CallContext context = {sequence, Deadline(kTimeout)};
      SYNCLINE_RETURN_IF_ERROR(RunShared(kind, buffers, kOwner, *backend, context));
      SYNCLINE_RETURN_IF_ERROR(CheckShared(kind, buffers, kOwner, rank, values));
    }
    return absl::OkStatus();
  }));
  EXPECT_EQ(reads, 0);
  EXPECT_GT(refusals, 0);
}

TEST(ShmCmaMixtureTest, OneRanksMemoryIsMappedAnothersReadAndAThirdHasNone) {
  constexpr int kRanks = 3;
  constexpr int64_t kCounts[] = {kPart, kPart + 7, 0};
  const char* const before = std::getenv("SYNCLINE_SHM_TUNING");
  ASSERT_NE(before, nullptr);
  const std::string tuning = before;
  ASSERT_EQ(setenv("SYNCLINE_SHM_TUNING", "64,4096,65536,65,4096,65", 1), 0);  // Maps, too.
  ResetCounts();
  const auto store = std::make_shared<HashStore>();
  ExpectAllOk(RunRanks(kRanks, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store, rank, kRanks));
    const Tensor input = rank == 0 ? EmptyShared(DType::kUInt8, {kCounts[0]}).value()
                                   : Tensor::Zeros(DType::kUInt8, {kCounts[rank]});
    if (input.numel() > 0) std::memset(input.data(), 1 + rank, input.nbytes());
    for (uint64_t sequence : {0, 1}) {
      std::vector<Tensor> outputs;
      for (const int64_t count : kCounts) outputs.push_back(Tensor::Zeros(DType::kUInt8, {count}));
      SYNCLINE_RETURN_IF_ERROR(RunAndWait(*backend, Collective::AllGather(outputs, input),
                                          {sequence, Deadline(kTimeout)})
                                   .status());
      for (int r = 0; r < kRanks; ++r) {
        SYNCLINE_RETURN_IF_ERROR(CheckAll(outputs[r], static_cast<uint8_t>(1 + r)));
      }
    }
    return absl::OkStatus();
  }));
  // Ranks 0 and 2 read rank 1's, in both calls.
  EXPECT_EQ(reads, 4);
  EXPECT_EQ(refusals, 0);
  setenv("SYNCLINE_SHM_TUNING", tuning.c_str(), 1);
}

TEST(ShmCmaPolicyTest, ARankThatIsOffNeitherReadsNorIsRead) {
  shm::ShmRanks ranks({shm::CmaPolicy::kOn, shm::CmaPolicy::kPtracer, shm::CmaPolicy::kOff});
  EXPECT_TRUE(ranks.group(0).cross_memory().CanRead(1));
  EXPECT_FALSE(ranks.group(0).cross_memory().CanRead(2));
  EXPECT_FALSE(ranks.group(0).cross_memory().CanReadAll());
  EXPECT_FALSE(ranks.group(2).cross_memory().CanRead(0));
  shm::AdaptiveCopier copier;
  EXPECT_FALSE(ranks.group(2).OffersAddress(OpKind::kBroadcast, kPart, copier));
}

TEST(ShmCmaPolicyTest, OffHasAllTakeTheRings) {
  constexpr int kRanks = 3;
  const auto store = std::make_shared<HashStore>();
  ResetCounts();
  ASSERT_EQ(setenv("SYNCLINE_CMA", "off", 1), 0);
  EXPECT_EQ(shm::ReadCmaPolicy().value(), shm::CmaPolicy::kOff);
  EXPECT_THAT(Info::DescribeBackend("shm").value(), HasSubstr("(CMA): SYNCLINE_CMA is off"));
  ExpectAllOk(RunRanks(kRanks, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store, rank, kRanks));
    return MakeAllCalls(rank, kRanks, *backend, 0);
  }));
  unsetenv("SYNCLINE_CMA");
  EXPECT_EQ(reads + refusals, 0);
}

TEST(ShmCmaPolicyTest, InfoSaysWhetherRanksCanRead) {
  EXPECT_THAT(Info::DescribeBackend("shm").value(),
              AnyOf(HasSubstr("can read each other's memory"), HasSubstr("ptrace_scope")));
  EXPECT_EQ(Info::DescribeBackend("local").value(), "");
  // Another thread, which ends with what it has lost.
  std::thread([] {
    LoseCma();
    EXPECT_THAT(Info::DescribeBackend("shm").value(), HasSubstr("Operation not permitted"));
  }).join();
}

TEST(ShmCmaPolicyTest, ThePolicyIsOnOffOrPtracer) {
  EXPECT_EQ(shm::ReadCmaPolicy().value(), shm::CmaPolicy::kOn);
  ASSERT_EQ(setenv("SYNCLINE_CMA", "Ptracer", 1), 0);
  EXPECT_EQ(shm::ReadCmaPolicy().value(), shm::CmaPolicy::kPtracer);
  ASSERT_EQ(setenv("SYNCLINE_CMA", "yes", 1), 0);
  EXPECT_EQ(KindOf(shm::ReadCmaPolicy().status()), ErrorKind::kArgument);
  // A rank with a bad value cannot join, and the others hear why.
  const auto store = std::make_shared<HashStore>();
  for (const absl::Status& status :
       RunRanks(2, [&](int rank) { return Join(store, rank, 2).status(); })) {
    EXPECT_THAT(status.message(), HasSubstr("SYNCLINE_CMA must be on, off or ptracer, not 'yes'"));
  }
  unsetenv("SYNCLINE_CMA");
}

// One page of the owner's tensor is not to be had, as memory of a device.
class ShmCmaHoleTest : public testing::TestWithParam<std::tuple<OpKind, int>> {};
INSTANTIATE_TEST_SUITE_P(All, ShmCmaHoleTest,
                         testing::Combine(testing::ValuesIn(SharedCalls()), testing::Values(2, 3)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)), "_",
                                               std::get<1>(info.param));
                         });

TEST_P(ShmCmaHoleTest, WhatTheKernelDoesNotGiveAwayComesFromItsOwner) {
  const auto [kind, size] = GetParam();
  const auto store = std::make_shared<HashStore>();
  ResetCounts();
  std::vector<SharedBuffers> buffers;
  std::vector<uint8_t> values;
  for (int rank = 0; rank < size; ++rank) {
    buffers.emplace_back(size, kPart);
    values.push_back(static_cast<uint8_t>(1 + rank));
    buffers[rank].Fill(values[rank]);
  }
  const bool one_is_read = kind == OpKind::kBroadcast || kind == OpKind::kScatter;
  const int root = one_is_read ? kOwner : kReader;
  // In the middle of what the owner has for the reader, or of all, where that is the same.
  const bool has_blocks =
      kind == OpKind::kScatter || kind == OpKind::kReduceScatter || kind == OpKind::kAllToAll;
  const int64_t hole = has_blocks ? kReader * kPart + kPart / 2 : kPart / 2;
  std::unique_ptr<PageTrap> trap;
  Countdown ready(size + 1);
  const auto run = [&, kind = kind, size = size](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store, rank, size));
    if (rank == kOwner) {
      trap = std::make_unique<PageTrap>(buffers[kOwner].own.data_as<char>() + hole);
    }
    ready.StepAndWait();
    const CallContext context = {0, Deadline(kTimeout)};
    SYNCLINE_RETURN_IF_ERROR(RunShared(kind, buffers[rank], root, *backend, context));
    return CheckShared(kind, buffers[rank], root, rank, values);
  };
  // The owner is held when it copies the page for the reader.
  const auto conduct = [&] {
    ready.StepAndWait();
    trap->AwaitHeld();
    trap->Release();
    return absl::OkStatus();
  };
  ExpectAllOk(RunRanks(size + 1,
                       [&, size = size](int rank) { return rank < size ? run(rank) : conduct(); }));
  // Of these two the owner may be held where it reads the page for itself, and others come later.
  if (kind != OpKind::kAllGather && kind != OpKind::kAllReduce) {
    EXPECT_GT(refusals, 0);
  }
}

}  // namespace
}  // namespace syncline
