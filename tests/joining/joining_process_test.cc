// Worlds of several processes, on backend gloo. The test program is its own worker.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/file_store.h"
#include "syncline/status.h"
#include "syncline/subgroups.h"
#include "syncline/world.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

constexpr char kUnderWay[] = "under way";

void Print(const std::string& text) {
  const std::string line = text + "\n";
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::abort();
}

absl::StatusOr<std::string> Sum(ProcessGroup& group, int world_rank) {
  std::vector<int64_t> sum = {int64_t{1} << world_rank};
  SYNCLINE_RETURN_IF_ERROR(group.AllReduce(Tensor::Of(sum)));
  SYNCLINE_RETURN_IF_ERROR(group.Barrier());
  return absl::StrCat("rank ", group.rank(), " of ", group.size(), ", sum ", sum[0]);
}

// Reduces again and again until that fails; then goes on without the ranks that `lost` lists.
absl::StatusOr<std::string> Survive(World& world, const std::string& lost) {
  std::vector<int> excluded;
  for (const absl::string_view text : absl::StrSplit(lost, ',')) {
    excluded.push_back(std::stoll(std::string(text)));
  }
  const Tensor tensor = Tensor::Zeros(DType::kFloat32, {4 << 20});  // 16 MiB
  for (bool is_first = true; world.group()->AllReduce(tensor).ok(); is_first = false) {
    if (is_first) Print(kUnderWay);
  }
  SYNCLINE_ASSIGN_OR_RETURN(auto group, Shrink(*world.group(), excluded, absl::Seconds(10)));
  return Sum(*group, world.rank());
}

// Meets all ranks in the store, as `kind` says; the last rank does not come.
absl::StatusOr<std::string> MeetInStore(World& world, const std::string& kind) {
  Print(kUnderWay);
  if (world.rank() == world.size() - 1) return "stays away";
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  if (kind == "monitored_barrier") return world.group()->MonitoredBarrier().ToString();
  if (kind == "split") return Split(*world.group(), {ranks}).status().ToString();
  return world.NewGroup(ranks).status().ToString();
}

// A worker: prints its rank and a sum, or an error; stays until its input ends. argv: --worker url
// rank size plan. The plan is empty, the name of a call to which the last rank does not come, or
// the ranks that are going to be lost: it works until they are killed, and then goes on without
// them.
absl::StatusOr<std::string> Work(char** argv) {
  WorldOptions options;
  options.init_method = argv[2];
  if (!absl::SimpleAtoi(argv[3], &options.rank) || !absl::SimpleAtoi(argv[4], &options.size)) {
    return ArgumentError("usage");
  }
  options.timeout = kTimeout;
  SYNCLINE_ASSIGN_OR_RETURN(auto world, World::Init(options));
  const std::string plan = argv[5];
  absl::StatusOr<std::string> text;
  if (plan.empty()) {
    text = Sum(*world->group(), world->rank());
  } else if (plan == "new_group" || plan == "split" || plan == "monitored_barrier") {
    text = MeetInStore(*world, plan);
  } else {
    text = Survive(*world, plan);
  }
  SYNCLINE_RETURN_IF_ERROR(text.status());
  Print(*text);
  // Nobody leaves before all have come so far: the test says when, by closing the input.
  char c = 0;
  while (read(STDIN_FILENO, &c, 1) < 0 && errno == EINTR) continue;
  world->Close();
  return text;
}

int WorkerMain(char** argv) {
  // The test's death, however it comes, is the worker's.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto result = Work(argv);
  if (result.ok()) return 0;
  Print(result.status().ToString());
  return 1;
}

// A worker process, and what it prints.
class Worker {
 public:
  Worker(const std::string& url, int rank, int size, const std::string& plan = "") {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
    input_ = in[1];
    output_ = out[0];
    const std::string rank_text = absl::StrCat(rank);
    const std::string size_text = absl::StrCat(size);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      execl("/proc/self/exe", "worker", "--worker", url.c_str(), rank_text.c_str(),
            size_text.c_str(), plan.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
  }

  ~Worker() {
    Kill();
    close(input_);
    close(output_);
  }

  void Kill() {
    if (reaped_) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    reaped_ = true;
  }

  pid_t pid() const { return pid_; }

  // Lets it end; whether it has ended well.
  bool Finish() {
    close(std::exchange(input_, -1));
    int status = 0;
    waitpid(pid_, &status, 0);
    reaped_ = true;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  // The next line that it prints; empty if it has ended without one.
  std::string Line() const {
    std::string text;
    char c = 0;
    ssize_t n;
    while ((n = read(output_, &c, 1)) != 0 && c != '\n') {
      if (n > 0) text += c;
      if (n < 0 && errno != EINTR) break;
    }
    return text;
  }

 private:
  pid_t pid_;
  int input_;
  int output_;
  bool reaped_ = false;
};

using Workers = std::vector<std::unique_ptr<Worker>>;

class JoiningProcessTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_), nullptr); }
  void TearDown() override {
    unlink(path().c_str());
    EXPECT_EQ(rmdir(folder_), 0);
  }

  std::string path() const { return absl::StrCat(folder_, "/store"); }

  std::string Url(const std::string& kind) const {
    if (kind == "file") return absl::StrCat("file://", path());
    if (kind == "tcp") return absl::StrCat("tcp://127.0.0.1:", FreePort());
    return absl::StrCat("tcp://239.255.7.9:", FreePort(), "?group_name=job", getpid());
  }

  // Each rank is there once, and they work together.
  static void ExpectWorld(const Workers& workers) {
    std::set<std::string> expected, actual;
    const size_t size = workers.size();
    for (size_t rank = 0; rank < size; ++rank) {
      expected.insert(absl::StrCat("rank ", rank, " of ", size, ", sum ", (1 << size) - 1));
      actual.insert(workers[rank]->Line());
    }
    EXPECT_EQ(actual, expected);
    for (const auto& worker : workers) EXPECT_TRUE(worker->Finish());
  }

 private:
  char folder_[40] = "/tmp/syncline_joining_proc_XXXXXX";
};

class MethodProcessTest : public JoiningProcessTest,
                          public ::testing::WithParamInterface<std::string> {};

INSTANTIATE_TEST_SUITE_P(Methods, MethodProcessTest, ::testing::Values("tcp", "file", "multicast"),
                         [](const auto& info) { return info.param; });

TEST_P(MethodProcessTest, ProcessesMeetWithAndWithoutRanks) {
  for (int size : {1, 2, 3, 7}) {
    for (bool are_given : {true, false}) {
      const std::string url = Url(GetParam());
      Workers workers;
      for (int i = 0; i < size; ++i) {
        workers.push_back(std::make_unique<Worker>(url, are_given ? i : -1, size));
      }
      ExpectWorld(workers);
    }
  }
}

TEST_P(MethodProcessTest, TheSurvivorsOfAKillShrinkAndGoOnWithinFiveSeconds) {
  const std::string url = Url(GetParam());
  Workers workers;
  for (int rank = 0; rank < 3; ++rank) {
    // Rank 0 hosts the store, where one is hosted; it survives.
    workers.push_back(std::make_unique<Worker>(url, rank, 3, "2"));
  }
  for (const auto& worker : workers) ASSERT_EQ(worker->Line(), kUnderWay);
  const absl::Time killed = absl::Now();
  workers[2]->Kill();
  EXPECT_EQ(workers[0]->Line(), "rank 0 of 2, sum 3");
  EXPECT_EQ(workers[1]->Line(), "rank 1 of 2, sum 3");
  EXPECT_LT(absl::Now() - killed, kTimeout / 2);
}

TEST_F(JoiningProcessTest, TwoMayBeLostAtOnce) {
  Workers workers;
  for (int i = 0; i < 4; ++i) {
    workers.push_back(std::make_unique<Worker>(Url("file"), i, 4, "0,2"));
  }
  for (const auto& worker : workers) ASSERT_EQ(worker->Line(), kUnderWay);
  workers[0]->Kill();
  workers[2]->Kill();
  EXPECT_EQ(workers[1]->Line(), "rank 0 of 2, sum 10");
  EXPECT_EQ(workers[3]->Line(), "rank 1 of 2, sum 10");
}

// Long before the deadline of a minute.
TEST_F(JoiningProcessTest, ARankThatDiesBeforeItComesToAMeetingInTheStoreIsNamed) {
  for (const char* kind : {"new_group", "split", "monitored_barrier"}) {
    Workers workers;
    const std::string url = Url("file");
    for (int i = 0; i < 3; ++i) workers.push_back(std::make_unique<Worker>(url, i, 3, kind));
    for (const auto& worker : workers) ASSERT_EQ(worker->Line(), kUnderWay);
    const absl::Time killed = absl::Now();
    workers[2]->Kill();
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(workers[i]->Line(), testing::ContainsRegex(absl::StrCat(
                                          "UNAVAILABLE: .*", kind, " .*: rank 2 \\(host .*, ",
                                          "pid ", workers[2]->pid(), "\\) has died")));
    }
    EXPECT_LT(absl::Now() - killed, kTimeout / 2);
    unlink(path().c_str());
  }
}

TEST_F(JoiningProcessTest, WhatAKilledJobLeftInItsFileIsHarmless) {
  {
    Worker left(Url("file"), -1, 2);
    auto store = FileStore::Open(path()).value();
    ASSERT_TRUE(store->Wait({"size 2/generation/1/slot/1"}, kTimeout).ok());
    left.Kill();
    struct stat info;
    ASSERT_EQ(stat(path().c_str(), &info), 0);
    // The test has kept the file, as the last to leave would remove it.
    ASSERT_EQ(link(path().c_str(), absl::StrCat(path(), ".old").c_str()), 0);
  }
  ASSERT_EQ(rename(absl::StrCat(path(), ".old").c_str(), path().c_str()), 0);
  Workers workers;
  for (int i = 0; i < 2; ++i) workers.push_back(std::make_unique<Worker>(Url("file"), -1, 2));
  ExpectWorld(workers);
}

TEST_F(JoiningProcessTest, TwoJobsAtOneMulticastAddressStayApart) {
  const std::string url = absl::StrCat("tcp://239.255.7.9:", FreePort(), "?group_name=");
  Workers one, other;
  for (int i = 0; i < 3; ++i) {
    one.push_back(std::make_unique<Worker>(absl::StrCat(url, "one"), -1, 3));
    if (i < 2) other.push_back(std::make_unique<Worker>(absl::StrCat(url, "other"), -1, 2));
  }
  ExpectWorld(one);
  ExpectWorld(other);
}

TEST_F(JoiningProcessTest, AProcessThatDiesWhileItJoinsByMulticastIsReplaced) {
  const std::string url = Url("multicast");
  Workers workers;
  workers.push_back(std::make_unique<Worker>(url, -1, 3));
  workers.push_back(std::make_unique<Worker>(url, -1, 3));
  workers[1]->Kill();
  workers.pop_back();
  for (int i = 0; i < 2; ++i) workers.push_back(std::make_unique<Worker>(url, -1, 3));
  ExpectWorld(workers);
}

TEST_F(JoiningProcessTest, WithASecretStrangersAreLeftOut) {
  const std::string secret = absl::StrCat(path(), ".secret");
  const int fd = open(secret.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  ASSERT_EQ(write(fd, "s3cret", 6), 6);
  close(fd);
  for (const char* kind : {"multicast", "tcp"}) {
    const std::string url = Url(kind);
    Workers workers;
    setenv("SYNCLINE_SECRET_FILE", secret.c_str(), 1);
    workers.push_back(std::make_unique<Worker>(url, -1, 2));
    unsetenv("SYNCLINE_SECRET_FILE");
    std::unique_ptr<Worker> stranger;
    if (std::string(kind) == "multicast") stranger = std::make_unique<Worker>(url, -1, 2);
    setenv("SYNCLINE_SECRET_FILE", secret.c_str(), 1);
    workers.push_back(std::make_unique<Worker>(url, -1, 2));
    unsetenv("SYNCLINE_SECRET_FILE");
    ExpectWorld(workers);
  }
  unlink(secret.c_str());
}

TEST_F(JoiningProcessTest, AWorldOfOneNeedsNoLauncher) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SYNCLINE_STORE"}) {
    unsetenv(name);
  }
  Workers workers;
  workers.push_back(std::make_unique<Worker>("", -1, -1));
  ExpectWorld(workers);
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--worker") return syncline::WorkerMain(argv);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
