#include "launch/worker.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/descriptor_limit.h"

namespace syncline::launch {
namespace {

using testing::HasSubstr;

WorkerSpec Shell(const std::string& script) {
  WorkerSpec spec;
  spec.program = "/bin/sh";
  spec.arguments = {"sh", "-c", script};
  spec.environment = {"PATH=/usr/bin:/bin"};
  return spec;
}

// What the worker writes to stdout until it ends, and then its wait status.
std::string Finish(Worker& worker, int* status) {
  std::string text;
  char buffer[4096];
  pollfd ready = {worker.out(), POLLIN, 0};
  while (poll(&ready, 1, 60000) > 0) {
    const ssize_t size = read(worker.out(), buffer, sizeof(buffer));
    if (size <= 0) break;
    text.append(buffer, static_cast<size_t>(size));
  }
  EXPECT_EQ(waitpid(worker.pid(), status, 0), worker.pid());
  worker.SetReaped();
  return text;
}

std::string OutputOf(const WorkerSpec& spec) {
  absl::StatusOr<Worker> worker = Worker::Start(spec);
  EXPECT_TRUE(worker.ok()) << worker.status();
  int status = 0;
  return worker.ok() ? Finish(*worker, &status) : "";
}

TEST(WorkerTest, GetsTheLimitOfDescriptorsThatTheLauncherHadBeforeItRaisedIt) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low = {200, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  RaiseDescriptorLimit();
  rlimit raised = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &raised), 0);
  EXPECT_EQ(raised.rlim_cur, before.rlim_max);
  EXPECT_EQ(OutputOf(Shell("ulimit -Sn; ulimit -Hn")),
            absl::StrCat("200\n", before.rlim_max, "\n"));
}

TEST(WorkerTest, LeadsASessionAndAGroupOfItsOwn) {
  absl::StatusOr<Worker> worker = Worker::Start(Shell("cut -d' ' -f1,5,6 /proc/$$/stat"));
  ASSERT_TRUE(worker.ok()) << worker.status();
  int status = 0;
  const int pid = worker->pid();
  EXPECT_EQ(Finish(*worker, &status), absl::StrCat(pid, " ", pid, " ", pid, "\n"));
  EXPECT_EQ(status, 0);
}

TEST(WorkerTest, NeitherIgnoresNorBlocksSignals) {
  signal(SIGPIPE, SIG_IGN);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  const std::string text = OutputOf(Shell("grep -E 'Sig(Blk|Ign)' /proc/$$/status | cut -f2"));
  sigset_t after;
  sigprocmask(SIG_SETMASK, &before, &after);
  uint64_t blocked = 1;
  uint64_t ignored = 1;
  ASSERT_EQ(sscanf(text.c_str(), "%" SCNx64 " %" SCNx64, &blocked, &ignored), 2) << text;
  EXPECT_EQ(blocked, 0u);
  EXPECT_EQ(ignored >> (SIGPIPE - 1) & 1, 0u);
  EXPECT_EQ(sigismember(&after, SIGTERM), 1);  // This process is left as it was.
  EXPECT_EQ(signal(SIGPIPE, SIG_DFL), SIG_IGN);
}

TEST(WorkerTest, HasNoInputUnlessItInheritsOne) {
  EXPECT_EQ(OutputOf(Shell("readlink /proc/$$/fd/0")), "/dev/null\n");
}

TEST(WorkerTest, HoldsNothingElseOpen) {
  EXPECT_EQ(OutputOf(Shell(
                "cd /proc/self/fd && for fd in *; do [ -e /proc/$$/fd/$fd ] && echo $fd; done; "
                "true")),
            "0\n1\n2\n");
}

TEST(WorkerTest, MayOnlyUseItsCpus) {
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof(mine), &mine), 0);
  int last = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mine)) last = cpu;
  }
  WorkerSpec spec = Shell("grep Cpus_allowed_list /proc/$$/status | cut -f2");
  spec.cpus = {last};
  EXPECT_EQ(OutputOf(spec), absl::StrCat(last, "\n"));
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&mine, &after));
}

TEST(WorkerTest, CpusThatAreNotThereAreAnError) {
  WorkerSpec spec = Shell("true");
  spec.cpus = {100000};
  EXPECT_THAT(Worker::Start(spec).status().message(), HasSubstr("cannot be run"));
}

TEST(WorkerTest, AProgramThatCannotRunIsAnErrorAndLeavesNoProcess) {
  WorkerSpec spec = Shell("true");
  spec.program = "/dev/null";
  EXPECT_THAT(Worker::Start(spec).status().message(),
              HasSubstr("'/dev/null' cannot be run: Permission denied"));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(WorkerTest, SignalsGoToTheWholeGroup) {
  absl::StatusOr<Worker> worker = Worker::Start(Shell("sleep 1000 & echo ready; wait"));
  ASSERT_TRUE(worker.ok()) << worker.status();
  pollfd ready = {worker->out(), POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 60000), 1);
  worker->SignalGroup(SIGKILL);
  int status = 0;
  EXPECT_EQ(Finish(*worker, &status), "ready\n");  // The end of the pipe: nobody holds it.
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

}  // namespace
}  // namespace syncline::launch
