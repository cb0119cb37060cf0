#include "core/device/stream_handle.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "core/device/cuda_types.h"
#include "core/device/task_thread.h"
#include "core/device/testing/fake_cuda_env.h"
#include "core/testing/faults.h"
#include "gtest/gtest.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

// Before main(): the library looks once.
const bool has_devices = setenv("FAKE_CUDA_DEVICES", "2", /*overwrite=*/0) == 0;

constexpr Device kCuda0 = {DeviceType::kCuda, 0};
constexpr absl::Duration kLong = absl::Seconds(60);

DeviceRuntime& Runtime() { return **DeviceRuntime::Get(); }

// What a call back was told.
class Outcome {
 public:
  auto Callback() {
    return [this](const absl::StatusOr<int>& outcome) {
      absl::MutexLock lock(&mutex_);
      ++calls_;
      outcome_ = outcome;
    };
  }

  // Waits for it. Fails the test if it does not come.
  absl::StatusOr<int> Await() {
    absl::MutexLock lock(&mutex_);
    const auto has_come = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return calls_ > 0; };
    EXPECT_TRUE(Deadline(kLong).Await(mutex_, absl::Condition(&has_come)));
    return outcome_;
  }

  int calls() {
    absl::MutexLock lock(&mutex_);
    return calls_;
  }

 private:
  absl::Mutex mutex_;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::StatusOr<int> outcome_ ABSL_GUARDED_BY(mutex_) = absl::UnknownError("not told");
};

class StreamHandleTest : public ::testing::Test {
 protected:
  std::shared_ptr<StreamHandle> Handle(int source = 0) {
    return std::make_shared<StreamHandle>(*Runtime().Record(*stream_), source);
  }

  const std::shared_ptr<const Stream> stream_ = *Runtime().MakeStream(kCuda0);
};

// The first test of this process: it starts the thread.
TEST_F(StreamHandleTest, WithoutAThreadNothingIsWatchedUntilThereIsOne) {
  const auto handle = Handle();
  {
    const ScopedFault fault("pthread_create");
    const absl::Status status = StreamWatcher::Get().Watch(handle, Deadline(kLong));
    EXPECT_EQ(KindOf(status), ErrorKind::kBackend) << status;
  }
  Outcome outcome;
  handle->OnDone(outcome.Callback());
  ASSERT_TRUE(StreamWatcher::Get().Watch(handle, Deadline(kLong)).ok());
  EXPECT_TRUE(outcome.Await().ok());
}

TEST_F(StreamHandleTest, EndsWithItsEvent) {
  std::shared_ptr<StreamHandle> handle;
  {
    const HeldStreams held;
    handle = Handle(3);
    EXPECT_TRUE(handle->is_stream_ordered());
    EXPECT_FALSE(handle->IsDone());
    const absl::Status status = handle->Wait(Deadline(absl::Milliseconds(1))).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
  }
  const absl::StatusOr<int> source = handle->Wait(Deadline(kLong));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(*source, 3);
  EXPECT_TRUE(handle->IsDone());
}

TEST_F(StreamHandleTest, WhoAsksCallsBackOnce) {
  Outcome before;
  Outcome after;
  const auto handle = Handle(2);
  handle->OnDone(before.Callback());
  ASSERT_TRUE(handle->Wait(Deadline(kLong)).ok());
  EXPECT_EQ(*before.Await(), 2);
  handle->OnDone(after.Callback());
  EXPECT_EQ(after.calls(), 1);
  EXPECT_TRUE(handle->IsDone());
  handle->End(BackendError("too late"));
  EXPECT_EQ(before.calls(), 1);
  EXPECT_TRUE(handle->Wait(Deadline(kLong)).ok());
}

TEST_F(StreamHandleTest, AStreamWaitsForTheCallAndTheHostDoesNot) {
  const auto other = *Runtime().MakeStream(kCuda0);
  std::shared_ptr<Event> behind;
  {
    const HeldStreams held;
    const auto handle = Handle();
    ASSERT_TRUE(handle->EnqueueWait(*other).ok());
    behind = *Runtime().Record(*other);
    EXPECT_FALSE(*behind->IsDone());
  }
  EXPECT_TRUE(StreamHandle(behind).Wait(Deadline(kLong)).ok());
}

TEST_F(StreamHandleTest, ACallThatFailedIsNotAwaitedByStreams) {
  const HeldStreams held;
  const auto handle = Handle();
  Outcome outcome;
  handle->OnDone(outcome.Callback());
  handle->End(MismatchError("rank 1 called something else"));
  EXPECT_EQ(KindOf(outcome.Await().status()), ErrorKind::kMismatch);
  EXPECT_EQ(KindOf(handle->EnqueueWait(*stream_)), ErrorKind::kMismatch);
  EXPECT_EQ(KindOf(handle->Wait(Deadline(kLong)).status()), ErrorKind::kMismatch);
  EXPECT_TRUE(handle->IsDone());
}

TEST_F(StreamHandleTest, AFailureWakesTheWait) {
  const HeldStreams held;
  const auto handle = Handle();
  absl::Notification waits;
  absl::StatusOr<int> outcome = 0;
  std::thread waiting([&] {
    waits.Notify();
    outcome = handle->Wait(Deadline(kLong));
  });
  ASSERT_TRUE(waits.WaitForNotificationWithTimeout(kLong));
  handle->End(BackendError("aborted"));
  waiting.join();
  EXPECT_EQ(outcome.status().message(), "aborted");
}

TEST_F(StreamHandleTest, AnInterruptEndsTheWaitAndNotTheCall) {
  std::shared_ptr<StreamHandle> handle;
  {
    const HeldStreams held;
    handle = Handle();
    const InterruptScope scope([] { return InterruptedError("by the test"); });
    EXPECT_TRUE(IsInterrupted(handle->Wait(Deadline(kLong)).status()));
    EXPECT_FALSE(handle->IsDone());
  }
  EXPECT_TRUE(handle->Wait(Deadline(kLong)).ok());
}

TEST_F(StreamHandleTest, TheErrorOfTheDeviceIsThatOfTheCall) {
  const auto handle = Handle();
  Outcome outcome;
  handle->OnDone(outcome.Callback());
  FakeCuda::Get().break_device(0, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_TRUE(handle->IsDone());
  FakeCuda::Get().break_device(0, 0);
  EXPECT_TRUE(absl::StrContains(outcome.Await().status().message(), "CUDA_ERROR_LAUNCH_FAILED"));
  EXPECT_FALSE(handle->Wait(Deadline(kLong)).ok());
}

// Waits until nobody owns it any more. Fails the test if that takes long.
void ExpectLetGo(const std::weak_ptr<int>& owned) {
  const Deadline deadline(kLong);
  while (!owned.expired() && !deadline.Expired()) std::this_thread::yield();
  EXPECT_TRUE(owned.expired());
}

TEST_F(StreamHandleTest, WhatCallBacksHoldStaysUntilTheWorkOfACallThatHasFailedHasEnded) {
  std::weak_ptr<int> before, after;
  {
    const HeldStreams held;
    const auto handle = Handle();
    const auto hold = [&](std::weak_ptr<int>& weak) {
      auto owned = std::make_shared<int>(1);
      weak = owned;
      handle->OnDone([owned = std::move(owned)](const absl::StatusOr<int>&) {});
    };
    hold(before);
    Outcome outcome;
    handle->OnDone(outcome.Callback());
    handle->End(BackendError("aborted"));
    EXPECT_EQ(outcome.Await().status().message(), "aborted");
    hold(after);
    EXPECT_TRUE(TaskThread::Callbacks().AwaitIdle(Deadline(kLong)));
    EXPECT_FALSE(before.expired());
    EXPECT_FALSE(after.expired());
  }
  ExpectLetGo(before);
  ExpectLetGo(after);
}

TEST_F(StreamHandleTest, CallBacksOfCallsThatAreEndedRunInOrderOnOneThread) {
  absl::Mutex mutex;
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  const HeldStreams held;
  for (int i = 0; i < 10; ++i) {
    const auto handle = Handle();
    for (int k = 0; k < 3; ++k) {
      handle->OnDone([&, number = 3 * i + k](const absl::StatusOr<int>&) {
        absl::MutexLock lock(&mutex);
        EXPECT_TRUE(StreamHandle::IsCallingBack());
        order.push_back(number);
        threads.push_back(std::this_thread::get_id());
      });
    }
    handle->End(i);
  }
  ASSERT_TRUE(TaskThread::Callbacks().AwaitIdle(Deadline(kLong)));
  absl::MutexLock lock(&mutex);
  ASSERT_EQ(order.size(), 30u);
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(order[i], i);
    EXPECT_EQ(threads[i], threads[0]);
    EXPECT_NE(threads[i], std::this_thread::get_id());
  }
}

// A call that also needs an answer from elsewhere.
class JudgedHandle : public StreamHandle {
 public:
  using StreamHandle::StreamHandle;

  void Judge(const absl::Status& verdict) {
    absl::MutexLock lock(&mutex_);
    verdict_ = verdict;
  }

 protected:
  std::optional<absl::Status> Verdict() override {
    absl::MutexLock lock(&mutex_);
    return verdict_;
  }

 private:
  absl::Mutex mutex_;
  std::optional<absl::Status> verdict_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(StreamHandleTest, AVerdictIsAwaitedOnceTheDeviceIsDone) {
  for (const bool is_good : {true, false}) {
    JudgedHandle handle(*Runtime().Record(*stream_), 5);
    ASSERT_TRUE(Runtime().Synchronize(*stream_, Deadline(kLong)).ok());
    EXPECT_FALSE(handle.IsDone());
    EXPECT_EQ(KindOf(handle.Wait(Deadline(absl::Milliseconds(1))).status()), ErrorKind::kTimeout);
    handle.Judge(is_good ? absl::OkStatus() : MismatchError("no"));
    const absl::StatusOr<int> outcome = handle.Wait(Deadline(kLong));
    EXPECT_EQ(outcome.ok(), is_good);
    EXPECT_EQ(outcome.value_or(5), 5);
  }
}

TEST_F(StreamHandleTest, AVerdictDoesNotEndWorkThatIsNotDone) {
  const HeldStreams held;
  JudgedHandle handle(*Runtime().Record(*stream_));
  handle.Judge(MismatchError("no"));
  EXPECT_FALSE(handle.IsDone());
}

TEST_F(StreamHandleTest, ManyThreadsMayWaitAndAskWhileItEnds) {
  for (int round = 0; round < 20; ++round) {
    std::shared_ptr<StreamHandle> handle;
    Outcome outcome;
    std::vector<std::thread> threads;
    {
      const HeldStreams held;
      handle = Handle(round);
      handle->OnDone(outcome.Callback());
      ASSERT_TRUE(StreamWatcher::Get().Watch(handle, Deadline(kLong)).ok());
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([handle, round, i] {
          if (i % 2 == 0) handle->IsDone();
          EXPECT_EQ(*handle->Wait(Deadline(kLong)), round);
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(*outcome.Await(), round);
    EXPECT_EQ(outcome.calls(), 1);
  }
}

using StreamWatcherTest = StreamHandleTest;

TEST_F(StreamWatcherTest, EndsCallsThatNobodyAsks) {
  std::vector<std::unique_ptr<Outcome>> outcomes;
  {
    const HeldStreams held;
    for (int i = 0; i < 50; ++i) {
      const auto handle = Handle(i);
      outcomes.push_back(std::make_unique<Outcome>());
      handle->OnDone(outcomes.back()->Callback());
      ASSERT_TRUE(StreamWatcher::Get().Watch(handle, Deadline(kLong)).ok());
    }
  }
  for (int i = 0; i < 50; ++i) EXPECT_EQ(*outcomes[i]->Await(), i);
}

TEST_F(StreamWatcherTest, EndsACallAtItsDeadline) {
  const HeldStreams held;
  Outcome late;
  Outcome other;
  const auto handle = Handle();
  const auto longer = Handle();
  handle->OnDone(late.Callback());
  longer->OnDone(other.Callback());
  ASSERT_TRUE(StreamWatcher::Get().Watch(longer, Deadline(kLong)).ok());
  ASSERT_TRUE(StreamWatcher::Get().Watch(handle, Deadline(absl::Milliseconds(5))).ok());
  const absl::Status status = late.Await().status();
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_TRUE(absl::StrContains(status.message(), "5ms")) << status;
  EXPECT_EQ(other.calls(), 0);
  longer->End(0);
  EXPECT_EQ(*other.Await(), 0);
}

TEST_F(StreamWatcherTest, IsNotHeldUpByACallBackThatWaits) {
  const HeldStreams held(1);
  const auto other = *Runtime().MakeStream({DeviceType::kCuda, 1});
  const auto first = Handle();
  const auto second = std::make_shared<StreamHandle>(*Runtime().Record(*other));
  absl::Notification begun, may_end;
  first->OnDone([&](const absl::StatusOr<int>&) {
    begun.Notify();
    EXPECT_TRUE(may_end.WaitForNotificationWithTimeout(kLong));
  });
  ASSERT_TRUE(StreamWatcher::Get().Watch(first, Deadline(kLong)).ok());
  ASSERT_TRUE(begun.WaitForNotificationWithTimeout(kLong));
  ASSERT_TRUE(StreamWatcher::Get().Watch(second, Deadline(absl::Milliseconds(7))).ok());
  const absl::Status status = second->Wait(Deadline(absl::Seconds(20))).status();
  EXPECT_TRUE(absl::StrContains(status.message(), " 7ms")) << status;
  may_end.Notify();
  EXPECT_TRUE(TaskThread::Callbacks().AwaitIdle(Deadline(kLong)));
}

TEST_F(StreamWatcherTest, ACallBackMayWaitForAnotherCallAndItsCallBacks) {
  const auto first = Handle();
  const auto second = Handle(1);
  Outcome inner, outer;
  second->OnDone(inner.Callback());
  first->OnDone([&](const absl::StatusOr<int>& outcome) {
    EXPECT_EQ(*second->Wait(Deadline(kLong)), 1);
    EXPECT_EQ(inner.calls(), 1);
    outer.Callback()(outcome);
  });
  for (const auto& handle : {first, second}) {
    ASSERT_TRUE(StreamWatcher::Get().Watch(handle, Deadline(kLong)).ok());
  }
  EXPECT_TRUE(outer.Await().ok());
}

TEST_F(StreamWatcherTest, LetsGoOfACallThatHasEnded) {
  auto handle = Handle();
  Outcome outcome;
  handle->OnDone(outcome.Callback());
  ASSERT_TRUE(StreamWatcher::Get().Watch(handle, Deadline(kLong)).ok());
  const std::weak_ptr<StreamHandle> weak = std::exchange(handle, nullptr);
  EXPECT_TRUE(outcome.Await().ok());
  // Soon after the call back.
  const Deadline deadline(kLong);
  while (!weak.expired() && !deadline.Expired()) std::this_thread::yield();
  EXPECT_TRUE(weak.expired());
}

TEST_F(StreamWatcherTest, ACallBackMayWatchAnotherCall) {
  const auto first = Handle();
  const auto second = Handle(1);
  Outcome outcome;
  second->OnDone(outcome.Callback());
  first->OnDone([second](const absl::StatusOr<int>&) {
    EXPECT_TRUE(StreamWatcher::Get().Watch(second, Deadline(kLong)).ok());
  });
  ASSERT_TRUE(StreamWatcher::Get().Watch(first, Deadline(kLong)).ok());
  EXPECT_EQ(*outcome.Await(), 1);
}

TEST_F(StreamWatcherTest, AChildOfForkIsRefused) {
  const auto handle = Handle();
  StreamWatcher& watcher = StreamWatcher::Get();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    _exit(KindOf(watcher.Watch(handle, Deadline(kLong))) == ErrorKind::kUnsupported ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace syncline::device
