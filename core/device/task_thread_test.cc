#include "core/device/task_thread.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "core/testing/faults.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

TaskThread::Tasks One(std::function<void()> task) {
  TaskThread::Tasks tasks;
  tasks.push_back(std::move(task));
  return tasks;
}

// Threads live as long as the process.
TaskThread& NewThread() { return *new TaskThread("a test"); }

TEST(TaskThreadTest, RunsWhatIsPostedInOrder) {
  TaskThread& thread = NewThread();
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) thread.Post(One([&order, i] { order.push_back(i); }));
  ASSERT_TRUE(thread.AwaitIdle(Deadline(kLong)));
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
  EXPECT_TRUE(thread.IsIdle());
}

TEST(TaskThreadTest, WhoPostsDoesNotWait) {
  TaskThread& thread = NewThread();
  absl::Notification may_end;
  thread.Post(One([&] { EXPECT_TRUE(may_end.WaitForNotificationWithTimeout(kLong)); }));
  thread.Post(One([] {}));
  EXPECT_FALSE(thread.IsIdle());
  EXPECT_FALSE(thread.AwaitIdle(Deadline(absl::Milliseconds(1))));
  may_end.Notify();
  EXPECT_TRUE(thread.AwaitIdle(Deadline(kLong)));
}

TEST(TaskThreadTest, ATaskMayPostAnother) {
  TaskThread& thread = NewThread();
  absl::Notification done;
  thread.Post(One([&] { thread.Post(One([&] { done.Notify(); })); }));
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(kLong));
}

TEST(TaskThreadTest, WithoutAThreadWhoPostsRunsTheTaskAndTheNextOneStartsTheThread) {
  TaskThread& thread = NewThread();
  std::thread::id ran_on;
  const auto remember = [&] { ran_on = std::this_thread::get_id(); };
  {
    const ScopedFault fault("pthread_create");
    EXPECT_EQ(KindOf(thread.Start()), ErrorKind::kBackend);
    thread.Post(One(remember));
    EXPECT_EQ(ran_on, std::this_thread::get_id());
  }
  EXPECT_TRUE(thread.Start().ok());
  thread.Post(One(remember));
  ASSERT_TRUE(thread.AwaitIdle(Deadline(kLong)));
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST(TaskThreadTest, InAChildOfForkWhoPostsRunsTheTask) {
  TaskThread& thread = NewThread();
  thread.Post(One([] {}));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool has_run = false;
    thread.Post(One([&] { has_run = true; }));
    const bool is_told = KindOf(thread.Start()) == ErrorKind::kUnsupported;
    _exit(has_run && is_told && thread.IsIdle() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace syncline::device
