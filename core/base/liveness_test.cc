#include "core/base/liveness.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/host.h"
#include "core/base/process_state.h"
#include "core/testing/no_descriptors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

// A child process that waits, as a rank that this one knows.
class Child {
 public:
  Child() : pid_(fork()) {
    if (pid_ == 0) {
      while (true) pause();
    }
    peer_ = IdentifyThisProcess().value();
    peer_.pid = pid_;
    peer_.started = ReadProcess(pid_)->started;
  }
  ~Child() { End(); }

  const Peer& peer() const { return peer_; }

  void Stop() {
    kill(pid_, SIGSTOP);
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
  }
  void Kill() {  // It remains as a zombie.
    kill(pid_, SIGKILL);
    siginfo_t info;
    waitid(P_PID, pid_, &info, WEXITED | WNOWAIT);
  }
  void End() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  const pid_t pid_;
  Peer peer_;
};

TEST(LivenessTest, AProcessLivesIsStoppedAndDies) {
  const Peer self = IdentifyThisProcess().value();
  EXPECT_EQ(LivenessOf(self, self), Liveness::kAlive);
  Child child;
  EXPECT_EQ(LivenessOf(self, child.peer()), Liveness::kAlive);
  child.Stop();
  EXPECT_EQ(LivenessOf(self, child.peer()), Liveness::kStopped);
  child.Kill();
  EXPECT_EQ(LivenessOf(self, child.peer()), Liveness::kDead);
  child.End();
  EXPECT_EQ(LivenessOf(self, child.peer()), Liveness::kDead);
}

// The first thread of the child below ends once another one runs.
void* RunOn(void*) {
  while (true) pause();
}

TEST(LivenessTest, AProcessWhoseFirstThreadHasEndedLives) {
  const Peer self = IdentifyThisProcess().value();
  const pid_t pid = fork();
  if (pid == 0) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, &RunOn, nullptr) != 0) _exit(1);
    syscall(SYS_exit, 0);  // As pthread_exit, without what it does to C++.
  }
  Peer child = self;
  child.pid = pid;
  child.started = ReadProcess(pid)->started;
  const std::string first = absl::StrCat("/proc/", pid, "/task/", pid, "/stat");
  std::string state;
  while (state.find(") Z ") == state.npos) {
    std::ifstream file(first);
    ASSERT_TRUE(std::getline(file, state)) << "it has ended";
  }
  EXPECT_EQ(LivenessOf(self, child), Liveness::kAlive);
  EXPECT_TRUE(ReadThread(pid)->is_ending);
  EXPECT_FALSE(ReadProcess(pid)->is_ending);
  kill(pid, SIGSTOP);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, pid, &info, WSTOPPED), 0);
  EXPECT_EQ(LivenessOf(self, child), Liveness::kStopped);
  kill(pid, SIGKILL);
  ASSERT_EQ(waitid(P_PID, pid, &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(LivenessOf(self, child), Liveness::kDead);
  waitpid(pid, nullptr, 0);
}

TEST(LivenessTest, AnotherProcessOfTheSamePidIsNotIt) {
  const Peer self = IdentifyThisProcess().value();
  Peer before = self;
  before.started -= 1;
  EXPECT_EQ(LivenessOf(self, before), Liveness::kDead);
}

TEST(LivenessTest, OfOtherHostsAndPidNamespacesNothingIsKnown) {
  const Peer self = IdentifyThisProcess().value();
  Peer other = self;
  other.pid = 1 << 30;
  ASSERT_EQ(LivenessOf(self, other), Liveness::kDead);
  other.pid_namespace = "pid:[1]";
  EXPECT_EQ(LivenessOf(self, other), Liveness::kUnknown);
  other = self;
  other.identity = "another";
  EXPECT_EQ(LivenessOf(self, other), Liveness::kUnknown);
}

TEST(LivenessTest, WithoutADescriptorToAskWithNobodyIsCalledDead) {
  const Child child;
  const Peer self = IdentifyThisProcess().value();
  const NoDescriptors lack;
  EXPECT_EQ(LivenessOf(self, child.peer()), Liveness::kUnknown);
  EXPECT_EQ(KindOf(IdentifyThisProcess().status()), ErrorKind::kBackend);
  EXPECT_THAT(std::string(IdentifyThisProcess().status().message()),
              testing::HasSubstr("Too many open files"));
  EXPECT_EQ(ThisPeer().pid, getpid());
}

TEST(LivenessTest, ACheckNamesTheDeadOfThoseThatMatter) {
  Child one, two, three;
  const std::vector<Peer> peers = {IdentifyThisProcess().value(), one.peer(), two.peer(),
                                   three.peer()};
  const PeerCheck all = CheckRanksAlive(peers, 0, {0, 1, 2, 3});
  EXPECT_TRUE(all().ok());
  one.Kill();
  two.Stop();
  three.End();
  EXPECT_EQ(KindOf(all()), ErrorKind::kNetwork);
  EXPECT_THAT(std::string(all().message()),
              testing::HasSubstr(absl::StrCat("rank 1 (", one.peer().ToString(), "), rank 3 (",
                                              three.peer().ToString(), ") have died")));
  EXPECT_TRUE(CheckRanksAlive(peers, 0, {0, 2})().ok());
  EXPECT_FALSE(CheckRanksAlive({}, 0, {}));
}

}  // namespace
}  // namespace syncline::base
