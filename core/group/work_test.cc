#include "syncline/work.h"

#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(30);

TEST(WorkTest, GoesFromPendingToRunningToDone) {
  Work work("all_reduce #7");
  EXPECT_EQ(work.state(), Work::State::kPending);
  EXPECT_FALSE(work.IsCompleted());
  work.Start();
  EXPECT_EQ(work.state(), Work::State::kRunning);
  EXPECT_FALSE(work.IsCompleted());
  EXPECT_TRUE(work.status().ok());
  work.Finish(absl::OkStatus());
  EXPECT_EQ(work.state(), Work::State::kDone);
  EXPECT_TRUE(work.IsCompleted());
  EXPECT_TRUE(work.Wait(absl::ZeroDuration()).ok());
}

TEST(WorkTest, ATimeoutOfTheOperationIsAStateOfItsOwn) {
  Work late("a");
  late.Finish(TimeoutError("late"));
  EXPECT_EQ(late.state(), Work::State::kTimedOut);
  Work failed("b");
  failed.Finish(BackendError("lost"));
  EXPECT_EQ(failed.state(), Work::State::kFailed);
  EXPECT_EQ(failed.Wait(), BackendError("lost"));
  EXPECT_EQ(failed.status(), BackendError("lost"));
}

TEST(WorkTest, AWaitThatIsTooShortNamesTheOperationAndChangesNothing) {
  Work work("all_reduce #7");
  const absl::Status queued = work.Wait(absl::Milliseconds(1));
  EXPECT_EQ(KindOf(queued), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(queued.message()), HasSubstr("all_reduce #7"));
  EXPECT_THAT(std::string(queued.message()), HasSubstr("1ms"));
  EXPECT_THAT(std::string(queued.message()), HasSubstr("queued"));
  work.Start();
  EXPECT_THAT(std::string(work.Wait(absl::Milliseconds(1)).message()), HasSubstr("is running"));
  EXPECT_EQ(work.state(), Work::State::kRunning);
  work.Finish(absl::OkStatus());
  EXPECT_TRUE(work.Wait(kLong).ok());
}

TEST(WorkTest, AllThreadsThatWaitGetTheOutcome) {
  auto work = std::make_shared<Work>("recv");
  std::vector<absl::Status> outcomes(4);
  std::vector<std::thread> threads;
  for (absl::Status& outcome : outcomes) {
    threads.emplace_back([work, &outcome] { outcome = work->Wait(kLong); });
  }
  work->Start();
  work->Finish(NetworkError("gone"));
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& outcome : outcomes) EXPECT_EQ(outcome, NetworkError("gone"));
}

TEST(WorkTest, CallbacksRunInOrderOnTheThreadThatFinishes) {
  Work work("send");
  std::vector<int> called;
  std::thread::id thread;
  work.OnComplete([&](const absl::Status& status) {
    EXPECT_EQ(status, BackendError("lost"));
    thread = std::this_thread::get_id();
    called.push_back(1);
  });
  work.OnComplete([&](const absl::Status&) { called.push_back(2); });
  EXPECT_TRUE(called.empty());
  std::thread runner([&] { work.Finish(BackendError("lost")); });
  const std::thread::id runner_id = runner.get_id();
  runner.join();
  EXPECT_EQ(called, (std::vector<int>{1, 2}));
  EXPECT_EQ(thread, runner_id);
}

TEST(WorkTest, ACallbackAfterTheEndRunsAtOnce) {
  Work work("send");
  work.Finish(absl::OkStatus());
  bool called = false;
  work.OnComplete([&](const absl::Status& status) { called = status.ok(); });
  EXPECT_TRUE(called);
}

TEST(WorkTest, ACallbackMayUseTheWork) {
  Work work("send");
  bool nested = false;
  work.OnComplete([&](const absl::Status&) {
    EXPECT_TRUE(work.IsCompleted());
    EXPECT_TRUE(work.Wait().ok());
    work.OnComplete([&](const absl::Status&) { nested = true; });
  });
  work.Finish(absl::OkStatus());
  EXPECT_TRUE(nested);
}

TEST(WorkTest, NoCallbackIsLostOrRunTwiceWhenItRacesTheEnd) {
  for (int round = 0; round < 100; ++round) {
    auto work = std::make_shared<Work>("send");
    absl::Notification called;  // Dies if it is notified twice.
    std::thread runner([work] { work->Finish(absl::OkStatus()); });
    work->OnComplete([&](const absl::Status&) { called.Notify(); });
    EXPECT_TRUE(called.WaitForNotificationWithTimeout(kLong));
    runner.join();
  }
}

TEST(WorkTest, ToAForkedChildItHasFailed) {
  Work work("all_reduce #7");
  work.Start();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    absl::Status told;
    work.OnComplete([&](const absl::Status& status) { told = status; });
    const bool failed = work.IsCompleted() && work.state() == Work::State::kFailed &&
                        work.source_rank() == -1 && KindOf(told) == ErrorKind::kBackend &&
                        work.Wait() == told && work.status() == told;
    _exit(failed ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(work.IsCompleted());
  work.Finish(absl::OkStatus());
  EXPECT_TRUE(work.Wait().ok());
}

}  // namespace
}  // namespace syncline
