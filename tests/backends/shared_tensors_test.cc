// Collectives of ranks of one host on tensors that their peers can map: with ranks as threads and
// as processes. The program is its own worker.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/file_store.h"
#include "syncline/hash_store.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"
#include "tests/support/backend_config.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<Tensor>;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kCount = 70'003;  // Elements; of every type enough for direct access.

// Where the tensors of a call are.
enum class Where {
  kPlain,
  kShared,
  kWithin,     // In the middle of larger ones in shared memory, at an odd offset.
  kNotRank0s,  // In shared memory, except those of rank 0.
  kNotLast,    // Except those of the last rank.
};
constexpr Where kWheres[] = {Where::kShared, Where::kWithin, Where::kNotRank0s, Where::kNotLast};

struct Rank {
  std::shared_ptr<Backend> backend;
  int rank;
  int size;
  uint64_t sequence = 0;

  CallContext Next() { return {sequence++, Deadline(kTimeout)}; }
};

absl::StatusOr<Rank> Join(std::shared_ptr<Store> store, int rank, int size) {
  SYNCLINE_ASSIGN_OR_RETURN(const BackendRegistry::Entry entry, BackendRegistry::Find("shm"));
  BackendConfig config = OnLoopback(std::move(store), rank, size, kTimeout);
  SYNCLINE_ASSIGN_OR_RETURN(auto backend, entry.make(config));
  return Rank{std::move(backend), rank, size};
}

bool IsPlain(Where where, const Rank& rank) {
  return where == Where::kPlain || (where == Where::kNotRank0s && rank.rank == 0) ||
         (where == Where::kNotLast && rank.rank == rank.size - 1);
}

// The tensors one after another, in new memory.
Tensors Row(const Tensors& tensors, Where where, const Rank& rank) {
  const DType dtype = tensors[0].dtype();
  const int64_t margin = where == Where::kWithin ? 3 : 0;
  int64_t count = 2 * margin;
  for (const Tensor& tensor : tensors) count += tensor.numel();
  const Tensor memory =
      IsPlain(where, rank) ? Tensor::Zeros(dtype, {count}) : EmptyShared(dtype, {count}).value();
  Tensors row;
  int64_t at = margin;
  for (const Tensor& tensor : tensors) {
    row.push_back(memory.Slice(at, tensor.numel()));
    std::memcpy(row.back().data(), tensor.data(), tensor.nbytes());
    at += tensor.numel();
  }
  return row;
}

Tensor Moved(const Tensor& tensor, Where where, const Rank& rank) {
  return Row({tensor}, where, rank)[0];
}

struct Spec {
  OpKind kind;
  DType dtype;
  ReduceOp op = ReduceOp::kSum;
  bool even = true;

  int64_t PartOf(int rank) const { return even ? kCount : kCount + 10'000 * (rank % 3); }
  std::string ToString() const {
    return absl::StrCat(Name(kind), " ", Name(dtype), " ", Name(op), even ? "" : " uneven");
  }
};

Tensor Fill(const Spec& spec, int64_t count, int seed) {
  return Reduces(spec.kind) ? Numbers(spec.dtype, count, seed) : Bytes(spec.dtype, count, seed);
}

// Makes the call; returns all tensors that the rank passed.
absl::StatusOr<Tensors> RunSpec(const Spec& spec, Where where, Rank& rank) {
  const int root = rank.size - 1;
  const bool is_root = rank.rank == root;
  const bool has_parts = spec.kind == OpKind::kReduceScatter || spec.kind == OpKind::kAllToAll ||
                         (spec.kind == OpKind::kScatter && is_root);
  Tensor tensor = Moved(Fill(spec, spec.PartOf(rank.rank), rank.rank), where, rank);
  Tensors parts, outputs;
  for (int r = 0; has_parts && r < rank.size; ++r) {
    parts.push_back(Fill(spec, spec.PartOf(r), rank.rank * rank.size + r));
  }
  if (has_parts) parts = Row(parts, where, rank);
  const bool gathers = spec.kind == OpKind::kAllGather ||
                       (spec.kind == OpKind::kGather && is_root) || spec.kind == OpKind::kAllToAll;
  for (int r = 0; gathers && r < rank.size; ++r) {
    const int64_t count = spec.kind == OpKind::kAllToAll ? spec.PartOf(rank.rank) : spec.PartOf(r);
    outputs.push_back(Tensor::Zeros(spec.dtype, {count}));
  }
  if (spec.kind == OpKind::kAllGather) outputs[rank.rank] = tensor;
  if (spec.kind == OpKind::kReduceScatter) tensor = parts[rank.rank];
  Backend& backend = *rank.backend;
  const CallContext context = rank.Next();
  absl::Status status;
  switch (spec.kind) {
    case OpKind::kBroadcast:
      status = RunAndWait(backend, Collective::Broadcast(tensor, root), context).status();
      break;
    case OpKind::kAllReduce:
      status = RunAndWait(backend, Collective::AllReduce(tensor, spec.op), context).status();
      break;
    case OpKind::kReduce:
      status = RunAndWait(backend, Collective::Reduce(tensor, spec.op, root), context).status();
      break;
    case OpKind::kAllGather:
      status = RunAndWait(backend, Collective::AllGather(outputs, tensor), context).status();
      break;
    case OpKind::kGather:
      status = RunAndWait(backend, Collective::Gather(outputs, tensor, root), context).status();
      break;
    case OpKind::kScatter:
      status = RunAndWait(backend, Collective::Scatter(tensor, parts, root), context).status();
      break;
    case OpKind::kReduceScatter:
      status =
          RunAndWait(backend, Collective::ReduceScatter(tensor, parts, spec.op), context).status();
      break;
    case OpKind::kAllToAll:
      status = RunAndWait(backend, Collective::AllToAll(outputs, parts), context).status();
      break;
    default:
      status = absl::InternalError("no such case");
  }
  SYNCLINE_RETURN_IF_ERROR(status);
  Tensors all = {tensor};
  all.insert(all.end(), parts.begin(), parts.end());
  all.insert(all.end(), outputs.begin(), outputs.end());
  return all;
}

std::vector<Spec> Specs() {
  std::vector<Spec> specs;
  for (OpKind kind : {OpKind::kAllReduce, OpKind::kReduce, OpKind::kReduceScatter}) {
    for (DType dtype : AllDTypes()) {
      for (ReduceOp op : AllReduceOps()) {
        if (CheckReduction(dtype, op).ok() && !IsFloat8(dtype)) specs.push_back({kind, dtype, op});
      }
    }
  }
  for (OpKind kind : {OpKind::kBroadcast, OpKind::kAllGather, OpKind::kGather, OpKind::kScatter,
                      OpKind::kAllToAll}) {
    for (DType dtype : AllDTypes()) specs.push_back({kind, dtype});
  }
  for (OpKind kind : {OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kAllToAll}) {
    specs.push_back({kind, DType::kFloat32, ReduceOp::kSum, /*even=*/false});
  }
  return specs;
}

// Mappings of peers' tensors in this process.
int CountMappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, " r--s ") && absl::StrContains(line, "memfd:syncline")) ++count;
  }
  return count;
}

// Every operation in one place after another: what it leaves is what it leaves in plain memory.
absl::Status CompareAll(Rank& rank) {
  size_t i = 0, number = 0;
  for (const Spec& spec : Specs()) {
    // Many ranks share few cores: a third of the cases is enough for them.
    if (rank.size > 3 && number++ % 3 != 0) continue;
    SYNCLINE_ASSIGN_OR_RETURN(const Tensors plain, RunSpec(spec, Where::kPlain, rank));
    // One of the others for each, since there are many; all of them for each operation.
    for (Where where : {Where::kShared, kWheres[i++ % std::size(kWheres)]}) {
      SYNCLINE_ASSIGN_OR_RETURN(const Tensors other, RunSpec(spec, where, rank));
      for (size_t t = 0; t < plain.size(); ++t) {
        if (SameBytes(plain[t], other[t])) continue;
        return absl::InternalError(absl::StrCat(spec.ToString(), " in place ",
                                                static_cast<int>(where), ", rank ", rank.rank,
                                                ": tensor ", t, " is another"));
      }
    }
  }
  return absl::OkStatus();
}

class SharedTensorsTest : public testing::TestWithParam<int> {
 protected:
  static int size() { return GetParam(); }

  static void InThreads(const std::function<absl::Status(Rank& rank)>& body) {
    const auto store = std::make_shared<HashStore>();
    for (const absl::Status& status : RunRanks(size(), [&](int rank) -> absl::Status {
           SYNCLINE_ASSIGN_OR_RETURN(Rank joined, Join(store, rank, size()));
           return body(joined);
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Sizes, SharedTensorsTest, testing::Values(1, 2, 3, 7));

TEST_P(SharedTensorsTest, EveryOperationLeavesTheSameBytesAsInPlainMemory) {
  InThreads([](Rank& rank) { return CompareAll(rank); });
  EXPECT_EQ(CountMappings(), 0) << "they go with the group";
}

TEST_P(SharedTensorsTest, TensorsAreReadWhereTheyAre) {
  Countdown done(size());
  InThreads([&](Rank& rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Tensors mine,
                              RunSpec({OpKind::kAllReduce, DType::kFloat32}, Where::kShared, rank));
    done.StepAndWait();
    if (rank.rank == 0) {
      EXPECT_EQ(CountMappings(), size() * (size() - 1));
    }
    return RunAndWait(*rank.backend, Collective::Barrier(), rank.Next()).status();
  });
}

TEST_P(SharedTensorsTest, TensorsThatAreFreedAndMadeAgainAreNotMistaken) {
  InThreads([](Rank& rank) -> absl::Status {
    const Tensor kept = EmptyShared(DType::kInt32, {kCount}).value();
    for (int round = 0; round < 200; ++round) {
      // Like as not where the last one was.
      const Tensor tensor = EmptyShared(DType::kInt32, {kCount}).value();
      std::fill_n(tensor.data_as<int32_t>(), kCount, round + rank.rank);
      SYNCLINE_RETURN_IF_ERROR(
          RunAndWait(*rank.backend, Collective::AllReduce(tensor, ReduceOp::kSum), rank.Next())
              .status());
      const int sum = rank.size * round + rank.size * (rank.size - 1) / 2;
      for (int64_t i = 0; i < kCount; i += 1000) {
        if (tensor.data_as<int32_t>()[i] != sum) {
          return absl::InternalError(absl::StrCat("round ", round, ", element ", i));
        }
      }
      SYNCLINE_RETURN_IF_ERROR(
          RunAndWait(*rank.backend, Collective::Broadcast(kept, 0), rank.Next()).status());
    }
    // Each rank may have those of the last round, and what is kept.
    EXPECT_LE(CountMappings(), 3 * rank.size * (rank.size - 1));
    return RunAndWait(*rank.backend, Collective::Barrier(), rank.Next()).status();
  });
}

TEST_P(SharedTensorsTest, ManyThatAreFreedAtOnceAreUnmappedInTheEnd) {
  InThreads([](Rank& rank) -> absl::Status {
    Tensors many;
    for (int i = 0; i < 50; ++i) {
      many.push_back(EmptyShared(DType::kUInt8, {kCount}).value());
      SYNCLINE_RETURN_IF_ERROR(
          RunAndWait(*rank.backend, Collective::AllReduce(many[i], ReduceOp::kMax), rank.Next())
              .status());
    }
    many.resize(1);
    for (int i = 0; i < 10; ++i) {
      SYNCLINE_RETURN_IF_ERROR(
          RunAndWait(*rank.backend, Collective::AllReduce(many[0], ReduceOp::kMax), rank.Next())
              .status());
    }
    SYNCLINE_RETURN_IF_ERROR(
        RunAndWait(*rank.backend, Collective::Barrier(), rank.Next()).status());
    EXPECT_EQ(CountMappings(), rank.size * (rank.size - 1));
    return RunAndWait(*rank.backend, Collective::Barrier(), rank.Next()).status();
  });
}

TEST_P(SharedTensorsTest, WhereTheyCannotBeMappedTheyAreCopied) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {3, limit.rlim_max};
  Countdown made(size()), reduced(size());
  InThreads([&](Rank& rank) -> absl::Status {
    const Tensor tensor = Moved(Numbers(DType::kInt64, kCount, rank.rank), Where::kShared, rank);
    made.StepAndWait();
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const absl::Status status =
        RunAndWait(*rank.backend, Collective::AllReduce(tensor, ReduceOp::kSum), rank.Next())
            .status();
    reduced.StepAndWait();
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    SYNCLINE_RETURN_IF_ERROR(status);
    SYNCLINE_RETURN_IF_ERROR(CheckReduced(tensor, ReduceOp::kSum, Upto(rank.size)));
    return CompareAll(rank);
  });
}

std::vector<std::unique_ptr<Process>> Start(const std::string& what, int size,
                                            const ScratchFolder& folder) {
  std::vector<std::unique_ptr<Process>> workers;
  for (int rank = 0; rank < size; ++rank) {
    workers.push_back(std::make_unique<Process>(std::vector<std::string>{
        "--worker", what, absl::StrCat(rank), absl::StrCat(size), folder.path() + "/store"}));
  }
  return workers;
}

TEST_P(SharedTensorsTest, ProcessesGetTheSameBytesToo) {
  const ScratchFolder folder;
  const auto workers = Start("compare", size(), folder);
  for (const auto& worker : workers) EXPECT_EQ(worker->Output(absl::Minutes(4)), "OK 0\n");
}

TEST_P(SharedTensorsTest, WhoDiesInTheMiddleIsNamed) {
  if (size() == 1) GTEST_SKIP() << "nobody is left";
  const ScratchFolder folder;
  const auto workers = Start("die", size(), folder);
  for (int rank = 0; rank < size() - 1; ++rank) {
    EXPECT_THAT(workers[rank]->Output(absl::Minutes(1)),
                AllOf(HasSubstr(absl::StrCat("rank ", size() - 1, " (")), HasSubstr("died")));
  }
}

TEST_P(SharedTensorsTest, WhoHasNoMemoryForItsPartIsNamedToAll) {
  if (size() == 1) GTEST_SKIP() << "there is no peer that could notice";
  const ScratchFolder folder;
  const auto workers = Start("want", size(), folder);
  for (const auto& worker : workers) {
    EXPECT_THAT(worker->Output(absl::Minutes(1)),
                AllOf(HasSubstr(absl::StrCat("rank ", size() - 1, " (")),
                      HasSubstr("cannot reserve shared memory of"),
                      HasSubstr("KiB: Cannot allocate memory")));
  }
}

// From now on the kernel has no memory for what this process reserves.
void WantMemory() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

// Reduces until it fails; the last rank ends after a while.
absl::Status ReduceUntilOneDies(Rank& rank) {
  const Tensor tensor = EmptyShared(DType::kFloat32, {4 << 20}).value();
  for (int i = 0;; ++i) {
    if (i == 5 && rank.rank == rank.size - 1) {
      // In the middle of the others' call, and of what they read.
      raise(SIGKILL);
    }
    SYNCLINE_RETURN_IF_ERROR(
        RunAndWait(*rank.backend, Collective::AllReduce(tensor, ReduceOp::kSum), rank.Next())
            .status());
  }
}

// A worker: prints how it went. arguments: --worker what rank size store.
int Work(char** argv) {
  int rank, size;
  if (!absl::SimpleAtoi(argv[3], &rank) || !absl::SimpleAtoi(argv[4], &size)) return 1;
  const std::string what = argv[2];
  if (what == "want" && rank == size - 1) WantMemory();
  absl::Status status;
  {
    auto joined = Join(FileStore::Open(argv[5]).value(), rank, size);
    status = joined.ok() ? absl::OkStatus() : joined.status();
    if (status.ok()) {
      status = what == "die" ? ReduceUntilOneDies(*joined) : CompareAll(*joined);
    }
  }
  std::printf("%s\n", status.ok() ? absl::StrCat("OK ", CountMappings()).c_str()
                                  : status.ToString().c_str());
  return 0;
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--worker") return syncline::Work(argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
