// A job of three processes in which, on one of them, the first, the second, the third ... call of
// the C library fails for want of a thread, a descriptor, memory or disk: each time either all goes
// on, or every rank gets an error that says why.
//
// --every=N: look at each N-th call (0: at the first, second, fourth, ...); --victims=A,B: on which
// ranks;
// --tcp: also with a store that rank 0 serves by gRPC.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/testing/faults.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "syncline/file_store.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"
#include "syncline/subgroups.h"
#include "syncline/world.h"
#include "tests/faults/known_faults.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::AnyOf;

constexpr int kRanks = 3;
// Of the job's calls: where one call fails, others may wait for it in vain; and where none does.
constexpr absl::Duration kTimeout = absl::Seconds(3);
constexpr absl::Duration kLongTimeout = absl::Seconds(60);
constexpr absl::Duration kLimit = absl::Seconds(90);  // Of the job; far more than it needs.
// Jobs. Where a fault makes others wait, they wait for all of kTimeout, which takes no processor.
constexpr int kAtOnce = 3;

// By a process that has once used gRPC: its epoll and wake-up descriptors.
constexpr char kKeptByGrpc[] = "anon_inode:, anon_inode:";
// By one that has once waited in Gloo: the thread that wakes such waits
// (backends/gloo/periodic_wakeup.h).
constexpr char kKeptForGloo[] = "thread";

int every = 0;
bool with_tcp = false;
std::vector<int> victims = {1};

// What this process holds: threads, and descriptors by what they are of. Not those by which the
// stacks of faults are read from programs and libraries.
std::multiset<std::string> Possessions() {
  std::multiset<std::string> all;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    std::string target = std::filesystem::read_symlink(entry.path(), gone);
    const bool is_own = absl::StartsWith(target, "/proc/") || target == program;
    if (gone || is_own || absl::StrContains(target, ".so")) continue;
    all.insert(target.substr(0, target.find('[')));
  }
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task")) {
    all.insert("thread");
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, "memfd:syncline")) all.insert("shared memory");
  }
  return all;
}

// What there is beyond `before`: a thread that has been joined is still listed for a moment.
std::string Left(const std::multiset<std::string>& before) {
  const Deadline deadline(absl::Seconds(5));
  while (true) {
    const std::multiset<std::string> now = Possessions();
    std::vector<std::string> left;
    std::set_difference(now.begin(), now.end(), before.begin(), before.end(),
                        std::back_inserter(left));
    if (left.empty() || deadline.Expired()) return absl::StrJoin(left, ", ");
    absl::SleepFor(absl::Milliseconds(1));
  }
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Tensor Ints(int64_t count, int value) {
  Tensor tensor = Tensor::Zeros(DType::kInt32, {count});
  std::fill_n(tensor.data_as<int32_t>(), count, value);
  return tensor;
}

absl::Status Expect(const Tensor& tensor, int value) {
  const auto* const data = tensor.data_as<int32_t>();
  const int64_t right = std::count(data, data + tensor.numel(), value);
  if (right == tensor.numel()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("WRONG DATA: ", tensor.numel() - right, " of ", tensor.numel(), " elements"));
}

// One of each collective, and messages.
absl::Status RunCollectives(ProcessGroup& group, int64_t count) {
  const int rank = static_cast<int>(group.rank()), size = static_cast<int>(group.size());
  const int sum = size * (size + 1) / 2;
  const auto parts = [&](int value) {
    std::vector<Tensor> tensors;
    for (int i = 0; i < size; ++i) tensors.push_back(Ints(count, value));
    return tensors;
  };
  Tensor x = Ints(count, rank + 1);
  SYNCLINE_RETURN_IF_ERROR(group.AllReduce(x));
  SYNCLINE_RETURN_IF_ERROR(Expect(x, sum));
  x = Ints(count, rank + 1);
  SYNCLINE_RETURN_IF_ERROR(group.Broadcast(x, 1));
  SYNCLINE_RETURN_IF_ERROR(Expect(x, 2));
  x = Ints(count, rank + 1);
  SYNCLINE_RETURN_IF_ERROR(group.Reduce(x, 0));
  if (rank == 0) SYNCLINE_RETURN_IF_ERROR(Expect(x, sum));
  std::vector<Tensor> outputs = parts(0);
  SYNCLINE_RETURN_IF_ERROR(group.AllGather(outputs, Ints(count, rank + 1)));
  for (int i = 0; i < size; ++i) SYNCLINE_RETURN_IF_ERROR(Expect(outputs[i], i + 1));
  SYNCLINE_RETURN_IF_ERROR(
      group.Gather(rank == 0 ? outputs : std::vector<Tensor>(), Ints(count, rank + 1), 0));
  x = Ints(count, 0);
  SYNCLINE_RETURN_IF_ERROR(group.Scatter(x, rank == 0 ? parts(7) : std::vector<Tensor>(), 0));
  SYNCLINE_RETURN_IF_ERROR(Expect(x, 7));
  SYNCLINE_RETURN_IF_ERROR(group.ReduceScatter(x, parts(rank + 1)));
  SYNCLINE_RETURN_IF_ERROR(Expect(x, sum));
  SYNCLINE_RETURN_IF_ERROR(group.AllToAll(outputs, parts(rank + 1)));
  for (int i = 0; i < size; ++i) SYNCLINE_RETURN_IF_ERROR(Expect(outputs[i], i + 1));
  SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<Work> sent,
                            group.SendAsync(Ints(count, rank), (rank + 1) % size));
  SYNCLINE_RETURN_IF_ERROR(group.Recv(x, (rank + size - 1) % size).status());
  SYNCLINE_RETURN_IF_ERROR(Expect(x, (rank + size - 1) % size));
  SYNCLINE_RETURN_IF_ERROR(sent->Wait());
  x = Ints(count, rank + 1);
  SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<Work> reduced, group.AllReduceAsync(x));
  SYNCLINE_RETURN_IF_ERROR(reduced->Wait());
  SYNCLINE_RETURN_IF_ERROR(Expect(x, sum));
  return group.Barrier();
}

struct Job {
  std::string backend;
  absl::Duration timeout = kTimeout;
  int port = 0;  // Of a store that rank 0 serves; 0: it is in a file.
};

// All that a rank does, from its first call to its last.
absl::Status RunJob(const Job& job, const std::string& path, int rank) {
  WorldOptions options;
  options.backend = job.backend;
  if (job.port == 0) {
    SYNCLINE_ASSIGN_OR_RETURN(options.store, FileStore::Open(path, job.timeout));
  } else {
    options.init_method = absl::StrCat("tcp://127.0.0.1:", job.port);
  }
  options.rank = rank;
  options.size = kRanks;
  options.timeout = job.timeout;
  SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<World> world, World::Init(options));
  SYNCLINE_RETURN_IF_ERROR(RunCollectives(*world->group(), 5));
  SYNCLINE_RETURN_IF_ERROR(RunCollectives(*world->group(), 100'000));
  SYNCLINE_ASSIGN_OR_RETURN(const Tensor shared, EmptyShared(DType::kInt32, {1 << 20}));
  SYNCLINE_RETURN_IF_ERROR(world->group()->AllReduce(shared));
  SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> half,
                            Split(*world->group(), {{0, 1}, {2}}));
  SYNCLINE_RETURN_IF_ERROR(half->Barrier());
  SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> others, world->NewGroup({1, 2}));
  if (others != nullptr) SYNCLINE_RETURN_IF_ERROR(others->AllReduce(Ints(5, 1)));
  SYNCLINE_RETURN_IF_ERROR(world->group()->Barrier());
  world->Close();
  return absl::OkStatus();
}

struct Fault {
  std::string call;
  int64_t number;
  int victim;
};

// In a process of its own.
[[noreturn]] void RunRank(const Job& job, const std::string& folder, int rank, const Fault& fault) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int log = open(absl::StrCat(folder, "/log", rank).c_str(), O_CREAT | O_WRONLY, 0600);
  dup2(log, STDERR_FILENO);
  close(log);
  ReportFaults(absl::StrCat(folder, "/faults", rank));
  const std::multiset<std::string> before = Possessions();
  if (rank == fault.victim) FailCalls(fault.call, fault.number);
  const absl::Status status = RunJob(job, folder + "/store", rank);
  StopFailing();
  const std::string left = Left(before);
  std::ofstream(absl::StrCat(folder, "/said", rank))
      << left << "\n"
      << status.ToString(absl::StatusToStringMode::kWithNoExtraData);
  _exit(0);
}

// What has become of a rank.
struct Outcome {
  bool has_ended = false;
  int status = 0;
  std::string left;    // Of what the job has taken.
  std::string said;    // "OK", or the error.
  std::string faults;  // Stacks.
};

Outcome Await(pid_t pid, const std::string& folder, int rank, const Deadline& deadline) {
  Outcome outcome;
  while (!(outcome.has_ended = waitpid(pid, &outcome.status, WNOHANG) == pid) &&
         !deadline.Expired()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  if (!outcome.has_ended) {
    kill(pid, SIGABRT);  // For its stack.
    absl::SleepFor(absl::Seconds(1));
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  outcome.faults = ReadFile(absl::StrCat(folder, "/faults", rank));
  const std::vector<std::string> lines =
      absl::StrSplit(ReadFile(absl::StrCat(folder, "/said", rank)), absl::MaxSplits('\n', 1));
  if (lines.size() == 2) {
    outcome.left = lines[0];
    outcome.said = lines[1];
  }
  return outcome;
}

// All ranks, from when it is made.
class RunningJob {
 public:
  RunningJob(const std::string& backend, const Fault& fault, absl::Duration timeout = kTimeout)
      : deadline_(kLimit) {
    Job job;
    job.timeout = timeout;
    const std::vector<std::string> words = absl::StrSplit(backend, '_');
    job.backend = words[0];
    if (words.size() == 2) job.port = FreePort();
    for (int rank = 0; rank < kRanks; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) RunRank(job, folder_.path(), rank, fault);
      pids_.push_back(pid);
    }
  }

  // Once.
  std::vector<Outcome> Outcomes() {
    std::vector<Outcome> outcomes;
    for (int rank = 0; rank < kRanks; ++rank) {
      outcomes.push_back(Await(pids_[rank], folder_.path(), rank, deadline_));
    }
    return outcomes;
  }

 private:
  const ScratchFolder folder_;
  const Deadline deadline_;
  std::vector<pid_t> pids_;
};

// Whether an error of `rank` tells of another rank, or of the store that one serves.
bool NamesAnother(absl::string_view error, int rank) {
  for (int other = 0; other < kRanks; ++other) {
    if (other != rank && absl::StrContains(error, absl::StrCat("rank ", other))) return true;
  }
  return absl::StrContains(error, "ranks ") || absl::StrContains(error, "store tcp://");
}

// Whether the victim's fault happened in `job`.
bool Check(RunningJob& job, const std::string& backend, const Fault& fault) {
  const absl::Time start = absl::Now();
  std::vector<Outcome> outcomes = job.Outcomes();
  const auto is_ok = [](const Outcome& outcome) { return outcome.said == "OK"; };
  if (outcomes[fault.victim].faults.empty() &&
      !std::all_of(outcomes.begin(), outcomes.end(), is_ok)) {
    outcomes = RunningJob(backend, fault, kLongTimeout).Outcomes();  // The machine is busy.
  }
  const Outcome& victim = outcomes[fault.victim];
  const bool is_tcp = absl::EndsWith(backend, "_tcp");
  const bool uses_gloo = backend != "shm" && !is_tcp;
  const bool hit = absl::StartsWith(victim.faults, "fault:");
  std::string all =
      absl::StrCat(backend, ", ", fault.call, " #", fault.number, " of rank ", fault.victim, ", ",
                   absl::FormatDuration(absl::Trunc(absl::Now() - start, absl::Milliseconds(1))));
  for (int rank = 0; rank < kRanks; ++rank) {
    absl::StrAppend(&all, "\n  rank ", rank, ": ", outcomes[rank].said, "\n    ",
                    outcomes[rank].faults);
  }
  SCOPED_TRACE(all);
  const bool known = IsKnown(fault.call, victim.faults);
  bool is_all_well = true;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Outcome& outcome = outcomes[rank];
    if (rank == fault.victim && known) continue;
    EXPECT_TRUE(outcome.has_ended) << "rank " << rank << " hangs";
    EXPECT_FALSE(WIFSIGNALED(outcome.status))
        << "rank " << rank << " died of signal " << WTERMSIG(outcome.status);
    EXPECT_FALSE(outcome.said.empty()) << "rank " << rank << " says nothing";
    EXPECT_THAT(outcome.left, AnyOf("", is_tcp ? kKeptByGrpc : "", uses_gloo ? kKeptForGloo : ""))
        << "rank " << rank << " has not given back all";
    if (outcome.said != "OK") is_all_well = false;
  }
  if (!hit) {
    EXPECT_TRUE(is_all_well) << "without a fault";
  } else if (!is_all_well) {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == fault.victim) {
        EXPECT_TRUE(known || outcomes[rank].said != "OK") << "who failed does not know";
      } else {
        EXPECT_TRUE(NamesAnother(outcomes[rank].said, rank)) << "rank " << rank << " names nobody";
      }
    }
  }
  if (std::getenv("VERBOSE") != nullptr) std::printf("%s\n", all.c_str());
  return hit;
}

class RankFaultsTest : public testing::TestWithParam<std::tuple<const char*, std::string>> {};

INSTANTIATE_TEST_SUITE_P(Calls, RankFaultsTest,
                         testing::Combine(testing::Values("shm", "auto", "gloo", "tcp", "shm_tcp"),
                                          testing::ValuesIn(FaultyCalls())),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_",
                                               std::get<1>(info.param));
                         });

TEST_P(RankFaultsTest, AllGoesOnOrEveryRankGetsAnErrorThatSaysWhy) {
  const auto& [backend, call] = GetParam();
  if (!with_tcp && absl::EndsWith(backend, "_tcp")) GTEST_SKIP() << "by hand";
  for (const int victim : victims) {
    int64_t number = 1;
    for (bool hit = true; hit;) {
      std::vector<std::unique_ptr<RunningJob>> jobs;
      std::vector<Fault> faults;
      for (int i = 0; i < kAtOnce; ++i) {
        faults.push_back({call, number, victim});
        jobs.push_back(std::make_unique<RunningJob>(backend, faults.back()));
        number += every > 0 ? every : number;  // 1, 2, 4, 8, ...
      }
      // What comes after the first call that is not made is not made either.
      for (int i = 0; i < kAtOnce; ++i) hit = Check(*jobs[i], backend, faults[i]) && hit;
    }
    std::printf("%s, %s: fewer than %d calls on rank %d\n", backend, call.c_str(),
                static_cast<int>(number), victim);
  }
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--every=")) {
      static_cast<void>(absl::SimpleAtoi(argument, &syncline::every));
    } else if (argument == "--tcp") {
      syncline::with_tcp = true;
    } else if (absl::ConsumePrefix(&argument, "--victims=")) {
      syncline::victims.clear();
      for (absl::string_view word : absl::StrSplit(argument, ',')) {
        int victim = 0;
        if (absl::SimpleAtoi(word, &victim)) syncline::victims.push_back(victim);
      }
    }
  }
  return RUN_ALL_TESTS();
}
