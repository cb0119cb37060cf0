// Backend auto over several hosts, with ranks as processes: what all ranks must agree on, and how
// they do without what one of them cannot do.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/collective.h"
#include "syncline/log.h"
#include "syncline/status.h"
#include "tests/backends/auto_workers.h"
#include "tests/support/operations.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The host of each rank.
struct Layout {
  const char* name;
  std::vector<int> hosts;
};

// ---- Calls that differ.

struct Move {
  OpKind kind;
  int64_t count;                     // Elements of float32.
  std::vector<int64_t> uneven = {};  // As in Spec.
};

// Calls that are compared in different code: in latency and bandwidth algorithms, and gloo's.
std::vector<Move> Moves() {
  return {{OpKind::kBarrier, 0},
          {OpKind::kAllReduce, 5},
          {OpKind::kAllReduce, 70000},
          {OpKind::kReduce, 5},
          {OpKind::kBroadcast, 5},
          {OpKind::kBroadcast, 70000},
          {OpKind::kAllGather, 5},
          {OpKind::kAllGather, 70000},
          {OpKind::kReduceScatter, 5},
          {OpKind::kReduceScatter, 70000},
          {OpKind::kGather, 5},
          {OpKind::kAllToAll, 5},
          {OpKind::kScatter, 5},
          {OpKind::kScatter, 70000},
          {OpKind::kAllToAll, 6, {0, 6, 1, 9}}};
}

// In one group after another, one rank makes another call than the others. A rank that only gives
// may hear of it in the barrier after it. Prints how it ended.
void RunMismatches(const Worker& worker) {
  int number = 0;
  for (const Move& usual : Moves()) {
    for (const Move& odd : Moves()) {
      if (usual.kind == odd.kind && usual.count == odd.count) continue;
      const int odd_rank = ++number % worker.size;
      auto backend = worker.Join("auto", absl::StrCat("group ", number));
      absl::Status status = backend.status();
      for (uint64_t turn = 0; turn < 3 && status.ok(); ++turn) {
        const Move own = turn == 2                              ? Move{OpKind::kBarrier, 0}
                         : turn == 1 && worker.rank == odd_rank ? odd
                                                                : usual;
        Spec spec{own.kind};
        spec.count = own.count;
        spec.uneven = own.uneven;
        const Collective operation = Build(spec, worker.rank, worker.size);
        CallContext context{turn, Deadline(absl::Seconds(20))};
        status = RunAndWait(**backend, operation, context).status();
      }
      std::printf("%s\n", status.ToString().c_str());
    }
  }
}

class AutoMismatchTest : public testing::TestWithParam<Layout> {};

INSTANTIATE_TEST_SUITE_P(Layouts, AutoMismatchTest,
                         testing::Values(Layout{"two_by_two", {0, 0, 1, 1}},
                                         Layout{"three_and_two", {0, 0, 1, 1, 0}},
                                         Layout{"three_hosts", {0, 1, 2, 2}},
                                         Layout{"four_hosts", {0, 0, 1, 1, 2, 3, 3}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(AutoMismatchTest, WhicheverTwoCallsDifferEveryRankQuotesBoth) {
  Workers workers(GetParam().hosts, "mismatch", "");
  // More than a pipe holds: all are read at once.
  std::vector<std::vector<std::string>> lines(workers.size());
  std::vector<std::thread> readers;
  for (int rank = 0; rank < workers.size(); ++rank) {
    readers.emplace_back([&workers, &lines, rank] {
      lines[rank] = absl::StrSplit(workers.Output(rank), '\n', absl::SkipEmpty());
    });
  }
  for (std::thread& reader : readers) reader.join();
  size_t number = 0;
  for (const Move& usual : Moves()) {
    for (const Move& odd : Moves()) {
      if (usual.kind == odd.kind && usual.count == odd.count) continue;
      const int odd_rank = static_cast<int>((number + 1) % workers.size());
      for (int rank = 0; rank < workers.size(); ++rank) {
        ASSERT_GT(lines[rank].size(), number) << "rank " << rank;
        EXPECT_THAT(
            lines[rank][number],
            AllOf(HasSubstr("FAILED_PRECONDITION"),
                  HasSubstr(absl::StrCat("rank ", odd_rank, " called ", Name(odd.kind), " #1")),
                  HasSubstr(absl::StrCat("called ", Name(usual.kind), " #1"))))
            << "rank " << rank << " in group " << number + 1 << ": " << Name(usual.kind) << " of "
            << usual.count << " elements, but " << Name(odd.kind) << " of " << odd.count;
      }
      ++number;
    }
  }
}

// ---- Hosts whose ranks cannot share memory.

// Makes the system calls fail by which memory is made, and sockets between processes of one host.
void ForbidSharing() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_memfd_create, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter = {sizeof(program) / sizeof(program[0]), program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0) {
    return;
  }
  std::perror("prctl");
  std::exit(1);
}

// Prints warnings and how it ended. argument: the rank that cannot share memory.
void RunWithoutSharing(const Worker& worker) {
  SetLogSink([](LogLevel, absl::string_view message) {
    std::printf("warning: %s\n", std::string(message).c_str());
  });
  if (worker.argument == absl::StrCat(worker.rank)) ForbidSharing();
  auto backend = worker.Join("auto", "group");
  absl::Status status = backend.status();
  for (uint64_t turn = 0; status.ok() && turn < 3; ++turn) {
    const Spec spec{OpKind::kAllReduce, DType::kInt32, 100000};
    const Collective operation = Build(spec, worker.rank, worker.size);
    CallContext context{turn, Deadline(absl::Seconds(60))};
    status = RunAndWait(**backend, operation, context).status();
    if (status.ok()) status = CheckDone(spec, operation, worker.rank, worker.size);
  }
  std::printf("%s\n", status.ToString().c_str());
}

struct Refusal {
  const char* name;
  std::vector<int> hosts;
  int rank;  // That cannot share memory.
};

void CheckRefusal(Workers& workers) {
  std::string warnings;
  for (int rank = 0; rank < workers.size(); ++rank) {
    std::string output = workers.Output(rank);
    EXPECT_TRUE(absl::EndsWith(output, "OK\n")) << "rank " << rank << ": " << output;
    absl::StrAppend(&warnings, output.substr(0, output.rfind("OK\n")));
  }
  int refusals = 0;
  const std::vector<std::string> lines = absl::StrSplit(warnings, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    EXPECT_THAT(line, AllOf(StartsWith("warning: "), HasSubstr("does without shared memory")));
    ++refusals;
  }
  EXPECT_EQ(refusals, 1) << warnings;
}

// A rank that cannot come says so, and nobody waits for it.
TEST(AutoRefusalTest, AGroupOneOfWhoseRanksCannotShareMemoryDoesWithoutAndOneRankWarns) {
  const Refusal refusals[] = {{"the last of one host", {0, 0, 0}, 2},
                              {"the first of a host", {0, 0, 1, 1}, 2},
                              {"the last of a host", {0, 0, 1, 1}, 3}};
  const absl::Time start = absl::Now();
  std::vector<std::unique_ptr<Workers>> groups;
  for (const Refusal& refusal : refusals) {
    groups.push_back(
        std::make_unique<Workers>(refusal.hosts, "refuse", absl::StrCat(refusal.rank)));
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    SCOPED_TRACE(refusals[i].name);
    CheckRefusal(*groups[i]);
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  using namespace syncline;
  return RunTestsOnHosts(argc, argv,
                         {{"mismatch", &RunMismatches}, {"refuse", &RunWithoutSharing}});
}
