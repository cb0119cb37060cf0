// Backend gloo between processes, one of which is killed. The test program is its own worker.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/backend.h"
#include "core/backend_registry.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/file_store.h"
#include "store/tcp_store.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr int kSize = 3;
constexpr absl::Duration kPatience = absl::Seconds(60);

absl::StatusOr<std::shared_ptr<Backend>> Join(std::shared_ptr<Store> store, int rank) {
  BackendConfig config;
  config.store = std::move(store);
  config.rank = rank;
  config.size = kSize;
  config.local_address = "127.0.0.1";
  config.deadline = Deadline(kPatience);
  return BackendRegistry::Make("gloo", config);
}

// Makes the call `kind` again and again until it fails.
absl::Status CallUntilFailure(Backend& backend, Store& store, int rank, const std::string& kind) {
  const Tensor tensor = Tensor::Zeros(DType::kFloat32, {4 << 20});  // 16 MiB
  for (uint64_t i = 0;; ++i) {
    const CallContext context = {i, Deadline(kPatience)};
    SYNCLINE_RETURN_IF_ERROR(kind == "broadcast"
                                 ? backend.Broadcast(tensor, 0, context)
                                 : backend.AllReduce(tensor, ReduceOp::kSum, context));
    // The test may take the store away before it has answered.
    if (i == 0) store.Set(absl::StrCat("under way/", rank), "").IgnoreError();
  }
}

// A worker: prints how its calls ended. argv: --worker rank store kind, where `store` is a path,
// or the port of a TCP store, which rank 0 hosts.
int Work(char** argv) {
  // The test's death, however it comes, is the worker's.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int rank, port;
  if (!absl::SimpleAtoi(argv[2], &rank)) return 1;
  std::shared_ptr<Store> store;
  if (absl::SimpleAtoi(argv[3], &port)) {
    TCPStore::Options options;
    options.port = port;
    store = TCPStore::Create(options).value();
  } else {
    store = FileStore::Open(argv[3]).value();
  }
  auto backend = Join(store, rank);
  const absl::Status status =
      backend.ok() ? CallUntilFailure(**backend, *store, rank, argv[4]) : backend.status();
  const std::string text = status.ToString();
  return write(STDOUT_FILENO, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0
                                                                                             : 1;
}

// A worker process, and what it prints.
class Worker {
 public:
  Worker(int rank, const std::string& store, const std::string& kind) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) std::abort();
    output_ = fds[0];
    const std::string rank_text = absl::StrCat(rank);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(fds[1], STDOUT_FILENO);
      execl("/proc/self/exe", "worker", "--worker", rank_text.c_str(), store.c_str(), kind.c_str(),
            static_cast<char*>(nullptr));
      _exit(127);
    }
    close(fds[1]);
  }

  ~Worker() {
    Kill();
    close(output_);
  }

  pid_t pid() const { return pid_; }

  void Kill() {
    if (reaped_) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    reaped_ = true;
  }

  // Kills, but leaves the corpse: the process is still in the table.
  void KillOnly() { kill(pid_, SIGKILL); }

  // All that it prints until it ends.
  std::string Output() {
    std::string text;
    char buffer[4096];
    ssize_t n;
    while ((n = read(output_, buffer, sizeof(buffer))) != 0) {
      if (n > 0) text.append(buffer, n);
      if (n < 0 && errno != EINTR) break;
    }
    return text;
  }

 private:
  pid_t pid_;
  int output_;
  bool reaped_ = false;
};

class GlooProcessTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(folder_), nullptr);
    path_ = absl::StrCat(folder_, "/store");
  }
  void TearDown() override {
    unlink(path_.c_str());
    EXPECT_EQ(rmdir(folder_), 0);
  }

  static std::vector<std::unique_ptr<Worker>> Start(const std::string& store) {
    std::vector<std::unique_ptr<Worker>> workers;
    for (int rank = 0; rank < kSize; ++rank) {
      workers.push_back(std::make_unique<Worker>(rank, store, GetParam()));
    }
    return workers;
  }

  static void AwaitUnderWay(Store& store) {
    absl::Status status = store.Wait({"under way/0", "under way/1", "under way/2"}, kPatience);
    ASSERT_TRUE(status.ok()) << status;
  }

  static std::string Victim(const Worker& worker, int rank) {
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    return absl::StrCat("rank ", rank, " (host ", host, ", pid ", worker.pid(), ") has died");
  }

  char folder_[40] = "/tmp/syncline_gloo_process_XXXXXX";
  std::string path_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, GlooProcessTest, ::testing::Values("all_reduce", "broadcast"),
                         [](const auto& info) { return info.param; });

TEST_P(GlooProcessTest, TheSurvivorsOfAKillNameTheVictimWithinTwoSeconds) {
  auto store = FileStore::Open(path_).value();
  auto workers = Start(path_);
  ASSERT_NO_FATAL_FAILURE(AwaitUnderWay(*store));
  const absl::Time killed = absl::Now();
  workers[2]->KillOnly();
  for (int rank : {0, 1}) {
    EXPECT_THAT(workers[rank]->Output(), HasSubstr(Victim(*workers[2], 2)));
  }
  EXPECT_LT(absl::Now() - killed, absl::Seconds(2));
}

TEST_P(GlooProcessTest, TheVictimIsNamedEvenIfTheStoreDiesWithIt) {
  // Rank 0's process would host the store; here this one does, so that it can be taken away first.
  TCPStore::Options options;
  options.role = StoreConfig::Role::kServer;
  auto store = TCPStore::Create(options).value();
  auto workers = Start(absl::StrCat(store->port()));
  ASSERT_NO_FATAL_FAILURE(AwaitUnderWay(*store));
  const std::string address = store->ToString();
  store.reset();
  const absl::Time killed = absl::Now();
  workers[0]->Kill();
  for (int rank : {1, 2}) {
    const std::string output = workers[rank]->Output();
    EXPECT_THAT(output, HasSubstr(Victim(*workers[0], 0)));
    EXPECT_THAT(output, HasSubstr(absl::StrCat("the store at ", address, " does not answer")));
  }
  EXPECT_LT(absl::Now() - killed, absl::Seconds(3));
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--worker") return syncline::Work(argv);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
