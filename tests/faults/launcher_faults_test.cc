// A launcher whose first, second, third ... call of the C library fails for want of a thread, a
// descriptor, memory or disk: each time it does its work, or ends with an error that says why, and
// leaves no process and no file.
//
// --every=N: look at each N-th call (0: at the first, second, fourth, ...).
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/testing/faults.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "tests/faults/known_faults.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(60);  // Of a job; far more than it needs.

int every = 0;

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string In(const std::string& folder, const char* name) {
  return absl::StrCat(folder, "/", name);
}

// One of a job, with what becomes of it.
struct Launcher {
  std::string folder;
  pid_t pid = -1;
  bool has_ended = false;
  int status = 0;
};

[[noreturn]] void BeLauncher(const std::string& folder, const std::vector<std::string>& options,
                             const std::string& fault) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const auto& [name, fd] :
       {std::pair("out", STDOUT_FILENO), std::pair("err", STDERR_FILENO)}) {
    const int file = open(In(folder, name).c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    dup2(file, fd);
    close(file);
  }
  setenv("TMPDIR", In(folder, "tmp").c_str(), 1);
  if (!fault.empty()) {
    setenv("LD_PRELOAD", std::filesystem::absolute("tests/faults/preload.so").c_str(), 1);
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
    setenv("SYNCLINE_FAULT", fault.c_str(), 1);
    setenv("SYNCLINE_FAULT_REPORT", In(folder, "faults").c_str(), 1);
  }
  std::vector<char*> arguments;
  for (const std::string& option : options) arguments.push_back(const_cast<char*>(option.c_str()));
  arguments.push_back(nullptr);
  execv("launch/syncline_run", arguments.data());
  _exit(127);
}

Launcher Start(const std::string& folder, const std::vector<std::string>& options,
               const std::string& fault) {
  Launcher launcher;
  launcher.folder = folder;
  std::filesystem::create_directories(In(folder, "tmp"));
  launcher.pid = fork();
  if (launcher.pid == 0) BeLauncher(folder, options, fault);
  return launcher;
}

void Await(Launcher& launcher, const Deadline& deadline) {
  const auto has_ended = [&] { return waitpid(launcher.pid, &launcher.status, WNOHANG) != 0; };
  while (!(launcher.has_ended = has_ended()) && !deadline.Expired()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  if (launcher.has_ended) return;
  kill(launcher.pid, SIGABRT);  // For its stack.
  absl::SleepFor(absl::Seconds(1));
  kill(launcher.pid, SIGKILL);
  waitpid(launcher.pid, nullptr, 0);
}

std::vector<std::string> OptionsOf(int nodes) {
  std::vector<std::string> options = {"syncline-run", "--max-restarts=1"};
  if (nodes == 1) {
    options.insert(options.end(), {"--standalone", "--nproc-per-node=2"});
  } else {
    options.insert(options.end(), {"--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d",
                                   absl::StrCat("--rdzv-endpoint=127.0.0.1:", FreePort()),
                                   "--rdzv-conf=join_timeout=10,read_timeout=10"});
  }
  options.insert(options.end(), {"--no-python", "tests/faults/worker"});
  return options;
}

// Whether no process is left of those that the launcher has started: they are this one's by now.
bool AllHaveEnded() {
  const Deadline deadline(absl::Seconds(20));
  while (!deadline.Expired()) {
    if (waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) return true;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return false;
}

// Whether the fault happened. It is that of the first of the launchers.
bool Check(const std::string& call, int64_t number, int nodes) {
  const ScratchFolder folder;
  const std::vector<std::string> options = OptionsOf(nodes);
  std::vector<Launcher> launchers;
  for (int node = 0; node < nodes; ++node) {
    launchers.push_back(Start(absl::StrCat(folder.path(), "/", node), options,
                              node == 0 ? absl::StrCat(call, ":", number) : ""));
  }
  const Deadline deadline(kLimit);
  std::string all = absl::StrCat(call, " #", number, ", ", nodes, " node(s)\n"), out;
  for (Launcher& launcher : launchers) {
    Await(launcher, deadline);
    absl::StrAppend(&out, ReadFile(In(launcher.folder, "out")));
    absl::StrAppend(&all, "status ", launcher.status, "\n", ReadFile(In(launcher.folder, "out")),
                    ReadFile(In(launcher.folder, "err")), ReadFile(In(launcher.folder, "faults")));
  }
  SCOPED_TRACE(all);
  if (std::getenv("VERBOSE") != nullptr) std::printf("%s\n", all.c_str());
  EXPECT_TRUE(AllHaveEnded());
  const std::string faults = ReadFile(In(launchers[0].folder, "faults"));
  const bool hit = absl::StrContains(faults, "fault:");
  const bool known = IsKnown(call, faults);
  int failed = 0;
  for (const Launcher& launcher : launchers) {
    // What gRPC lacks a thread for may never be done. But one that is alone needs no store.
    const bool may_hang = known && nodes > 1 && &launcher == &launchers[0];
    EXPECT_TRUE(launcher.has_ended || may_hang) << "a launcher hangs";
    if (!launcher.has_ended || WEXITSTATUS(launcher.status) != 0) ++failed;
    if (!launcher.has_ended) continue;
    EXPECT_FALSE(WIFSIGNALED(launcher.status)) << "died of signal " << WTERMSIG(launcher.status);
    EXPECT_TRUE(known || std::filesystem::is_empty(In(launcher.folder, "tmp")));
    if (WEXITSTATUS(launcher.status) == 0) continue;
    EXPECT_FALSE(ReadFile(In(launcher.folder, "err")).empty()) << "no word of why";
  }
  EXPECT_TRUE(hit || failed == 0) << "without a fault";
  EXPECT_TRUE(failed == 0 || failed == nodes) << "one knows nothing of the other's failure";
  if (failed == 0 && call != "write") {  // A write that fails may lose the report.
    EXPECT_TRUE(absl::StrContains(out, "rank 0 is done"));
    EXPECT_TRUE(absl::StrContains(out, "rank 1 is done"));
  }
  return hit;
}

class LauncherFaultsTest : public testing::TestWithParam<std::string> {
 protected:
  // Until no call is hit any more.
  static void Sweep(int nodes) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int64_t number = 1;
    while (Check(GetParam(), number, nodes)) {
      number += every > 0 ? every : number;  // 1, 2, 4, 8, ...
    }
    std::printf("%s: fewer than %d calls\n", GetParam().c_str(), static_cast<int>(number));
  }
};

INSTANTIATE_TEST_SUITE_P(Calls, LauncherFaultsTest, testing::ValuesIn(FaultyCalls()),
                         [](const auto& info) { return info.param; });

TEST_P(LauncherFaultsTest, AloneItDoesItsWorkOrSaysWhyNot) { Sweep(1); }

TEST_P(LauncherFaultsTest, WithAnotherItDoesItsWorkOrBothSayWhyNot) {
  if (every == 0) GTEST_SKIP() << "by hand";
  Sweep(2);
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--every=")) {
      static_cast<void>(absl::SimpleAtoi(argument, &syncline::every));
    }
  }
  return RUN_ALL_TESTS();
}
