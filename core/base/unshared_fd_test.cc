#include "core/base/unshared_fd.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "core/base/unique_fd.h"
#include "gtest/gtest.h"

namespace syncline::base {
namespace {

struct Pair {
  Pair() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    unshared = UnsharedFd(UniqueFd(fds[0]));
    peer = UniqueFd(fds[1]);
  }

  // Whether the other end has no user any more, or will have none within a minute.
  bool HasEnded() const {
    pollfd entry = {peer.get(), POLLRDHUP, 0};
    return poll(&entry, 1, 60'000) > 0;
  }

  UnsharedFd unshared;
  UniqueFd peer;
};

bool IsSocket(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode);
}

// Runs `body`, which returns an exit code, in a child.
template <typename Body>
pid_t InChild(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  return child;
}

int ExitCode(pid_t child) {
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(UnsharedFdTest, AConnectionEndsThoughAChildLives) {
  Pair pair;
  const pid_t child = InChild([] {
    pause();
    return 0;
  });
  pair.unshared.reset();
  EXPECT_TRUE(pair.HasEnded());
  kill(child, SIGKILL);
  EXPECT_EQ(ExitCode(child), -1);
}

TEST(UnsharedFdTest, InAChildTheNumberIsTakenAndStandsForNothing) {
  Pair pair;
  const int fd = pair.unshared.get();
  EXPECT_EQ(ExitCode(InChild([&] {
              if (fcntl(fd, F_GETFD) != FD_CLOEXEC || IsSocket(fd)) return 1;
              pair.unshared.reset();
              return fcntl(fd, F_GETFD) == FD_CLOEXEC ? 0 : 2;
            })),
            0);
  EXPECT_TRUE(IsSocket(fd));
}

TEST(UnsharedFdTest, AChildThatLacksDescriptorsHasNothingThereEither) {
  Pair first, second;
  std::vector<UniqueFd> all;
  do {
    all.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  } while (all.back().valid());
  EXPECT_EQ(ExitCode(InChild([&] {
              for (const int fd : {first.unshared.get(), second.unshared.get()}) {
                if (fcntl(fd, F_GETFD) != FD_CLOEXEC || IsSocket(fd)) return 1;
              }
              return 0;
            })),
            0);
}

TEST(UnsharedFdTest, WhatIsSharedAgainIsTheChilds) {
  Pair pair;
  const UniqueFd shared = pair.unshared.Share();
  EXPECT_FALSE(pair.unshared.valid());
  EXPECT_EQ(ExitCode(InChild([&] { return IsSocket(shared.get()) ? 0 : 1; })), 0);
}

TEST(UnsharedFdTest, MovesKeepItUnshared) {
  Pair first, second;
  const int fd = first.unshared.get();
  second.unshared = std::move(first.unshared);
  EXPECT_FALSE(first.unshared.valid());
  EXPECT_TRUE(second.HasEnded());
  const UnsharedFd last = std::move(second.unshared);
  EXPECT_EQ(last.get(), fd);
  EXPECT_EQ(ExitCode(InChild([&] { return IsSocket(fd) ? 1 : 0; })), 0);
}

TEST(UnsharedFdTest, AChildsOwnAreNotSharedWithItsChildren) {
  Pair pair;
  EXPECT_EQ(ExitCode(InChild([] {
              const Pair own;
              return ExitCode(InChild([&] { return IsSocket(own.unshared.get()) ? 1 : 0; }));
            })),
            0);
}

TEST(UnsharedFdTest, WhatCannotBeOpenedIsInvalid) {
  errno = 0;
  EXPECT_FALSE(UnsharedFd::Open("/dev/null/none", O_RDONLY, 0).valid());
  EXPECT_EQ(errno, ENOTDIR);
  EXPECT_FALSE(UnsharedFd(UniqueFd()).valid());
}

}  // namespace
}  // namespace syncline::base
