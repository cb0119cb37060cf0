#include "syncline/file_store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/file/file_lock.h"
#include "syncline/status.h"

namespace syncline::file_store {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr absl::Duration kTimeout = absl::Seconds(30);

using Strings = std::vector<std::string>;

std::string NewFolder() {
  std::string folder = absl::StrCat(testing::TempDir(), "/file_store_XXXXXX");
  EXPECT_NE(mkdtemp(&folder[0]), nullptr);
  return folder;
}

std::string NewPath() { return absl::StrCat(NewFolder(), "/store"); }

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::string ReadFile(const std::string& path) {
  std::stringstream contents;
  contents << std::ifstream(path).rdbuf();
  return contents.str();
}

std::shared_ptr<FileStore> Open(const std::string& path) {
  auto store = FileStore::Open(path, kTimeout);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

absl::Status OpenError(const std::string& path) {
  auto store = FileStore::Open(path, kTimeout);
  EXPECT_FALSE(store.ok());
  EXPECT_THAT(std::string(store.status().message()), StartsWith("store file://"));
  return store.status();
}

// Runs `body` in a forked process, which never returns from it; its wait status. No test has a
// thread at that time.
int RunInChild(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    const rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    body();
    _exit(99);
  }
  int status = -1;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

bool WasKilledBy(int status, int signal) {
  return WIFSIGNALED(status) && WTERMSIG(status) == signal;
}

bool Succeeded(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

// A job of one process that is killed: its file stays.
void LeaveAStaleFile(const std::string& path) {
  const int status = RunInChild([&] {
    auto store = FileStore::Open(path, kTimeout);
    if (store.ok() && (*store)->Set("key", "stale").ok()) raise(SIGKILL);
  });
  ASSERT_TRUE(WasKilledBy(status, SIGKILL)) << status;
  ASSERT_THAT(ReadFile(path), HasSubstr("stale"));
}

TEST(FileStoreTest, AStaleFileOfADeadJobIsStartedAnew) {
  const std::string path = NewPath();
  LeaveAStaleFile(path);
  auto store = Open(path);
  EXPECT_FALSE(*store->Check(Strings{"key"}));
  EXPECT_EQ(*store->Add("key", 1), 1);
}

TEST(FileStoreTest, AFileWhoseFirstWriterWasKilledAtOnceIsStartedAnew) {
  const std::string path = NewPath();
  for (const char* beginning : {"", "sync"}) {
    std::ofstream(path) << beginning;
    EXPECT_EQ(*Open(path)->Add("n", 1), 1);
  }
}

TEST(FileStoreTest, OfManyWhoFindAStaleFileOneStartsItAnew) {
  const std::string path = NewPath();
  for (int round = 0; round < 10; ++round) {
    LeaveAStaleFile(path);
    std::vector<std::shared_ptr<FileStore>> stores(6);
    std::vector<std::thread> threads;
    for (auto& store : stores) {
      threads.emplace_back([&] {
        store = Open(path);
        EXPECT_TRUE(store->Add("key", 1).ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(*stores[0]->Get("key", kTimeout), "6");
  }
}

TEST(FileStoreTest, TheLastClientToLeaveRemovesTheFile) {
  const std::string path = NewPath();
  auto one = Open(path);
  auto two = Open(path);
  ASSERT_TRUE(one->Set("key", "value").ok());
  one.reset();
  EXPECT_TRUE(Exists(path));
  EXPECT_EQ(*two->Get("key", kTimeout), "value");
  two.reset();
  EXPECT_FALSE(Exists(path));
}

TEST(FileStoreTest, ComingAndGoingAtTheSameTimeDoesNoHarm) {
  const std::string path = NewPath();
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 30; ++n) {
        auto store = Open(path);
        ASSERT_NE(store, nullptr);
        EXPECT_TRUE(store->Set(absl::StrCat(i), absl::StrCat(n)).ok());
        EXPECT_EQ(*store->Get(absl::StrCat(i), kTimeout), absl::StrCat(n));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(Exists(path));
}

TEST(FileStoreTest, AddsFromManyProcessesSumExactly) {
  const std::string path = NewPath();
  auto store = Open(path);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      auto own = FileStore::Open(path, kTimeout);
      bool ok = own.ok();
      for (int n = 0; ok && n < 100; ++n) ok = (*own)->Add("n", 1).ok();
      _exit(ok ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (pid_t pid : children) {
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(Succeeded(status)) << status;
  }
  EXPECT_EQ(*store->Add("n", 0), 400);
}

// The kernel kills, with SIGXFSZ, a process that writes beyond its limit, after it has written
// what fits.
TEST(FileStoreTest, TheTornRecordOfAKilledWriterIsCutOffByTheNext) {
  const std::string path = NewPath();
  auto store = Open(path);
  ASSERT_TRUE(store->Set("before", "1").ok());
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  const rlim_t whole = info.st_size;
  const int status = RunInChild([&] {
    auto own = FileStore::Open(path, kTimeout);
    const rlimit limit = {whole + 1000, whole + 1000};
    if (own.ok() && setrlimit(RLIMIT_FSIZE, &limit) == 0) {
      static_cast<void>((*own)->Set("torn", std::string(5000, 'x')));
    }
  });
  ASSERT_TRUE(WasKilledBy(status, SIGXFSZ)) << status;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  ASSERT_EQ(static_cast<rlim_t>(info.st_size), whole + 1000);

  EXPECT_FALSE(*store->Check(Strings{"torn"}));
  auto late = Open(path);
  EXPECT_EQ(*late->Get("before", kTimeout), "1");
  ASSERT_TRUE(late->Set("after", "2").ok());
  EXPECT_EQ(*store->Get("after", kTimeout), "2");
  EXPECT_EQ(*store->Keys(""), (Strings{"after", "before"}));
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_LT(static_cast<rlim_t>(info.st_size), whole + 1000);
}

TEST(FileStoreTest, AWriteThatDoesNotFitFailsAndChangesNothing) {
  const std::string path = NewPath();
  auto store = Open(path);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  absl::Status status = store->Set("key", std::string(5000, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);

  EXPECT_EQ(KindOf(status), ErrorKind::kStore) << status;
  EXPECT_THAT(status.message(), HasSubstr("cannot write the file: File too large"));
  EXPECT_FALSE(*store->Check(Strings{"key"}));
  ASSERT_TRUE(store->Set("key", "small").ok());
  EXPECT_EQ(*Open(path)->Get("key", kTimeout), "small");
}

TEST(FileStoreTest, AMissingFolderIsAnErrorThatNamesIt) {
  const std::string folder = absl::StrCat(NewFolder(), "/missing");
  absl::Status status = OpenError(absl::StrCat(folder, "/store"));
  EXPECT_EQ(KindOf(status), ErrorKind::kStore);
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("there is no folder '", folder, "'")));
}

TEST(FileStoreTest, WhatIsNotARegularFileIsAnError) {
  const std::string folder = NewFolder();
  EXPECT_THAT(OpenError(folder).message(), HasSubstr("it is a folder"));
  const std::string pipe = absl::StrCat(folder, "/pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(OpenError(pipe).message(), HasSubstr("not a regular file"));
}

TEST(FileStoreTest, ALinkIsNotFollowed) {
  const std::string folder = NewFolder();
  const std::string target = absl::StrCat(folder, "/target"), link = absl::StrCat(folder, "/link");
  ASSERT_EQ(symlink(target.c_str(), link.c_str()), 0);
  const absl::Status status = OpenError(link);
  EXPECT_EQ(KindOf(status), ErrorKind::kStore);
  EXPECT_THAT(status.message(), HasSubstr("it is a symbolic link"));
  EXPECT_NE(access(target.c_str(), F_OK), 0);
}

TEST(FileStoreTest, AFileThatAStrangerLaidInAFolderOfEverybodyIsNotUsed) {
  constexpr uid_t kStranger = 65534;
  const std::string folder = NewFolder(), path = absl::StrCat(folder, "/store");
  std::ofstream(path).close();
  if (chown(path.c_str(), kStranger, -1) != 0) GTEST_SKIP() << "only root gives files away";
  EXPECT_NE(Open(path), nullptr);  // In a folder of this user's it is what the user wants.
  std::ofstream(path).close();
  ASSERT_EQ(chown(path.c_str(), kStranger, -1), 0);
  ASSERT_EQ(chmod(folder.c_str(), 01777), 0);
  EXPECT_THAT(OpenError(path).message(), HasSubstr("belongs to user 65534"));
}

TEST(FileStoreTest, AFileThatIsNoStoreIsAnErrorAndLeftAsItIs) {
  const std::string path = NewPath();
  std::ofstream(path) << "my thesis";
  absl::Status status = OpenError(path);
  EXPECT_EQ(KindOf(status), ErrorKind::kStore);
  EXPECT_THAT(status.message(), HasSubstr("is not a store"));
  EXPECT_EQ(ReadFile(path), "my thesis");
}

TEST(FileStoreTest, AFileThatMayNotBeWrittenIsAnError) {
  // One that not even root may write.
  EXPECT_THAT(OpenError("/proc/sys/kernel/ostype").message(), HasSubstr("no permission"));
}

TEST(FileStoreTest, AnEmptyPathIsAnArgumentError) {
  EXPECT_EQ(KindOf(FileStore::Open("", kTimeout).status()), ErrorKind::kArgument);
}

TEST(FileStoreTest, ARelativePathIsMadeAbsolute) {
  auto store = Open("relative_store");
  EXPECT_THAT(store->path(), StartsWith("/"));
  EXPECT_THAT(store->path(), testing::EndsWith("/relative_store"));
}

TEST(FileStoreTest, ALockThatAnotherProcessHoldsTooLongIsATimeout) {
  const std::string path = NewPath();
  auto opened = FileStore::Open(path, absl::Milliseconds(200));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_TRUE(*TryLockByte(fd, int64_t{1} << 62, FileLockMode::kExclusive));
  absl::Status status = (*opened)->Set("key", "value");
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("has held the lock for 200ms"));
  close(fd);
  EXPECT_TRUE((*opened)->Set("key", "value").ok());
}

TEST(FileStoreTest, AThreadThatWaitsForTheLockDoesNotHoldUpAnother) {
  const std::string path = NewPath();
  auto opened = FileStore::Open(path, absl::Milliseconds(200));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_TRUE(*TryLockByte(fd, int64_t{1} << 62, FileLockMode::kExclusive));
  absl::Notification waiting;
  std::thread waiter([&] {
    waiting.Notify();
    EXPECT_EQ(*(*opened)->Get("key", kTimeout), "value");
  });
  waiting.WaitForNotification();
  const absl::Time start = absl::Now();
  for (int i = 0; i < 2; ++i) {  // The first may come before the waiter; it then lets that in.
    EXPECT_EQ(KindOf((*opened)->Set("key", "value")), ErrorKind::kTimeout);
  }
  EXPECT_LT(absl::Now() - start, kTimeout / 2);
  close(fd);
  EXPECT_TRUE((*opened)->Set("key", "value").ok());
  waiter.join();
}

TEST(FileStoreTest, AFileThatIsRemovedOrCutWhileInUseIsNoticed) {
  const std::string path = NewPath();
  auto store = Open(path);
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_THAT(store->Set("key", "value").message(), HasSubstr("removed by somebody else"));
  EXPECT_THAT(store->Get("key", kTimeout).status().message(), HasSubstr("removed by somebody"));

  auto next = Open(path);
  store.reset();  // Is not the last to leave this file.
  ASSERT_TRUE(next->Set("key", "value").ok());
  ASSERT_EQ(truncate(path.c_str(), 3), 0);
  EXPECT_THAT(next->Set("key", "value").message(), HasSubstr("cut short by somebody else"));
}

TEST(FileStoreTest, AForkedChildCannotUseItAndDoesNotEndIt) {
  const std::string path = NewPath();
  auto store = Open(path);
  ASSERT_TRUE(store->Set("key", "value").ok());
  const int status = RunInChild([&] {
    const bool refused = KindOf(store->Set("key", "child's")) == ErrorKind::kStore;
    store.reset();
    _exit(refused ? 0 : 1);
  });
  EXPECT_TRUE(Succeeded(status)) << status;
  ASSERT_TRUE(Exists(path));
  EXPECT_EQ(*store->Get("key", kTimeout), "value");
  EXPECT_EQ(*Open(path)->Get("key", kTimeout), "value");
}

TEST(FileStoreTest, AForkedChildDoesNotKeepTheFileOfAKilledJobAlive) {
  const std::string path = NewPath();
  int hold[2], born[2];
  ASSERT_EQ(pipe(hold), 0);
  ASSERT_EQ(pipe(born), 0);
  const int status = RunInChild([&] {
    auto store = FileStore::Open(path, kTimeout);
    if (!store.ok() || !(*store)->Set("key", "stale").ok()) return;
    if (fork() == 0) {
      close(hold[1]);
      char byte = 0;
      if (write(born[1], &byte, 1) == 1) static_cast<void>(!read(hold[0], &byte, 1));
      _exit(0);
    }
    char byte = 0;
    if (read(born[0], &byte, 1) == 1) raise(SIGKILL);
  });
  EXPECT_TRUE(WasKilledBy(status, SIGKILL)) << status;
  EXPECT_FALSE(*Open(path)->Check(Strings{"key"}));
  for (int fd : {hold[0], hold[1], born[1]}) close(fd);  // Lets the grandchild go.
  char byte = 0;
  EXPECT_EQ(read(born[0], &byte, 1), 0) << "the grandchild has not ended";
  close(born[0]);
}

TEST(FileStoreTest, AForkedChildLeavesAloneAFileThatHasTakenTheStoresDescriptor) {
  auto store = Open(NewPath());
  const int status = RunInChild([&] {
    int ends[2];  // The store's descriptor was closed, so they may take its number.
    if (pipe(ends) != 0) return;
    store.reset();
    _exit(fcntl(ends[0], F_GETFD) >= 0 && fcntl(ends[1], F_GETFD) >= 0 ? 0 : 1);
  });
  EXPECT_TRUE(Succeeded(status)) << status;
}

}  // namespace
}  // namespace syncline::file_store
