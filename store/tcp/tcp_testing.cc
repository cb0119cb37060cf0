#include "store/tcp/tcp_testing.h"

#include <dirent.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"

namespace syncline::tcp_store {
namespace {

constexpr char kServe[] = "--serve";

int Serve(const std::string& secret, const std::string& max_descriptors) {
  rlim_t limit = 0;
  if (absl::SimpleAtoi(max_descriptors, &limit) && limit > 0) {
    const rlimit both = {limit, limit};
    setrlimit(RLIMIT_NOFILE, &both);
  }
  TCPServer::Options options;
  options.secret = secret;
  auto server = TCPServer::Start(options);
  if (!server.ok()) return 1;
  const pid_t parent = getppid();
  std::printf("%d", (*server)->port());
  std::fflush(stdout);
  while (getppid() == parent) absl::SleepFor(absl::Milliseconds(100));
  return 0;
}

}  // namespace

ServerProcess::ServerProcess(const std::string& secret, int max_descriptors) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  std::string program = "/proc/self/exe", flag = kServe, given_secret = secret,
              limit = absl::StrCat(max_descriptors);
  char* arguments[] = {&program[0], &flag[0], &given_secret[0], &limit[0], nullptr};
  EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  char line[16] = {};
  EXPECT_GT(read(ends[0], line, sizeof(line) - 1), 0);
  EXPECT_TRUE(absl::SimpleAtoi(line, &port_)) << line;
  close(ends[0]);
}

ServerProcess::~ServerProcess() {
  Signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ServerProcess::Signal(int signal) {
  kill(pid_, signal);
  if (signal == SIGSTOP) waitpid(pid_, nullptr, WUNTRACED);  // Its threads may run on for a while.
}

int ServerProcess::NumDescriptors() const {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(
      opendir(absl::StrCat("/proc/", pid_, "/fd").c_str()), &closedir);
  EXPECT_NE(folder, nullptr);
  int count = -2;  // . and ..
  while (folder != nullptr && readdir(folder.get()) != nullptr) ++count;
  return count;
}

int64_t ServerProcess::MostMemory() const {
  std::ifstream in(absl::StrCat("/proc/", pid_, "/status"));
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t kibibytes = 0;
    if (words.size() == 3 && words[0] == "VmHWM:" && absl::SimpleAtoi(words[1], &kibibytes)) {
      return kibibytes << 10;
    }
  }
  ADD_FAILURE() << "no VmHWM of process " << pid_;
  return 0;
}

int RunTestsOrServe(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], kServe) == 0) return Serve(argv[2], argv[3]);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace syncline::tcp_store
