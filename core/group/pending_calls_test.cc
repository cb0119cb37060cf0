// ProcessGroup, Work and the operation queue over a backend whose calls end late, as those of a
// device do.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/testing/deferred_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/interrupt.h"
#include "syncline/process_group.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(20);

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

// A thread that is joined at the end of the scope.
class ScopedThread {
 public:
  explicit ScopedThread(std::function<void()> body) : thread_(std::move(body)) {}
  ~ScopedThread() { thread_.join(); }

 private:
  std::thread thread_;
};

// A tensor whose memory says when nobody holds it any more.
struct Watched {
  Watched() {
    auto owner = std::make_shared<std::vector<float>>(4);
    alive = owner;
    float* const data = owner->data();
    tensor.emplace(data, DType::kFloat32, std::vector<int64_t>{4}, std::vector<int64_t>{}, Device(),
                   std::move(owner));
  }

  std::weak_ptr<void> alive;
  std::optional<Tensor> tensor;
};

TEST(PendingCallsTest, ABlockingCallReturnsWhenTheCallHasEnded) {
  const auto group = MakeDeferredGroup(2);
  const auto backend = DeferredBackend::Last();
  const Tensor tensor = Tensor::Zeros(DType::kFloat32, {4});
  std::atomic<bool> has_ended{false};
  const ScopedThread device([&] {
    ASSERT_TRUE(backend->WaitForCalls(1));
    has_ended = true;
    backend->Finish(0, 0);
    ASSERT_TRUE(backend->WaitForCalls(2));
    backend->Finish(1, 1);
  });
  EXPECT_TRUE(group->AllReduce(tensor).ok());
  EXPECT_TRUE(has_ended);
  EXPECT_EQ(*group->Recv(tensor, kAnySource), 1);
}

TEST(PendingCallsTest, AWorkEndsWithItsCall) {
  const auto group = MakeDeferredGroup(2);
  const auto backend = DeferredBackend::Last();
  const Tensor tensor = Tensor::Zeros(DType::kFloat32, {4});
  const auto work = *group->RecvAsync(tensor, kAnySource);
  ASSERT_TRUE(backend->WaitForCalls(1));
  EXPECT_FALSE(work->IsCompleted());
  EXPECT_EQ(KindOf(work->Wait(absl::Milliseconds(20))), ErrorKind::kTimeout);
  EXPECT_EQ(work->source_rank(), -1);
  absl::Status seen = absl::UnknownError("not called");
  work->OnComplete([&](const absl::Status& status) { seen = status; });
  backend->Finish(0, 1);
  EXPECT_TRUE(work->Wait(kTimeout).ok());
  EXPECT_TRUE(seen.ok());
  EXPECT_EQ(work->source_rank(), 1);
}

TEST(PendingCallsTest, CallsAreIssuedInOrderWhileEarlierOnesArePendingAndEndInAnyOrder) {
  const auto group = MakeDeferredGroup();
  const auto backend = DeferredBackend::Last();
  const Tensor tensor = Tensor::Zeros(DType::kFloat32, {4});
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 3; ++i) works.push_back(*group->AllReduceAsync(tensor));
  ASSERT_TRUE(backend->WaitForCalls(3));
  EXPECT_THAT(backend->calls(), ElementsAre("all_reduce #0", "all_reduce #1", "all_reduce #2"));
  for (const int i : {2, 0, 1}) {
    EXPECT_FALSE(works[i]->IsCompleted());
    backend->Finish(i, 0);
    EXPECT_TRUE(works[i]->Wait(kTimeout).ok());
  }
}

TEST(PendingCallsTest, ACallThatFailsLateFailsTheGroupAndWhatIsPending) {
  const auto group = MakeDeferredGroup(2);
  const auto backend = DeferredBackend::Last();
  const Tensor tensor = Tensor::Zeros(DType::kFloat32, {4});
  const auto first = *group->AllReduceAsync(tensor), second = *group->AllReduceAsync(tensor);
  ASSERT_TRUE(backend->WaitForCalls(2));
  backend->Finish(0, NetworkError("rank 1 was lost"));
  const absl::Status failed = first->Wait(kTimeout);
  EXPECT_EQ(KindOf(failed), ErrorKind::kNetwork);
  EXPECT_THAT(MessageOf(failed),
              HasSubstr("rank 0 of group 'default': all_reduce #0 (float32[4] on cpu, sum): rank 1 "
                        "was lost"));
  EXPECT_THAT(MessageOf(second->Wait(kTimeout)), HasSubstr("rank 1 was lost"));
  const absl::Status refused = group->AllReduce(tensor);
  EXPECT_THAT(MessageOf(refused), AllOf(HasSubstr("was refused"), HasSubstr("rank 1 was lost")));
}

TEST(PendingCallsTest, AnAbortEndsWhatIsPending) {
  const auto group = MakeDeferredGroup();
  const auto backend = DeferredBackend::Last();
  const Tensor tensor = Tensor::Zeros(DType::kFloat32, {4});
  const auto work = *group->AllReduceAsync(tensor);
  ASSERT_TRUE(backend->WaitForCalls(1));
  group->Abort("the test says so");
  EXPECT_THAT(MessageOf(work->Wait(kTimeout)), HasSubstr("the test says so"));
}

TEST(PendingCallsTest, AnAbortEndsABlockingCall) {
  const auto group = MakeDeferredGroup();
  const auto backend = DeferredBackend::Last();
  const Tensor tensor = Tensor::Zeros(DType::kFloat32, {4});
  const ScopedThread other([&] {
    ASSERT_TRUE(backend->WaitForCalls(1));
    group->Abort("the test says so");
  });
  EXPECT_THAT(MessageOf(group->AllReduce(tensor)), HasSubstr("the test says so"));
}

TEST(PendingCallsTest, AGroupThatIsDestroyedEndsWhatIsPending) {
  auto group = MakeDeferredGroup();
  const auto backend = DeferredBackend::Last();
  const auto work = *group->AllReduceAsync(Tensor::Zeros(DType::kFloat32, {4}));
  ASSERT_TRUE(backend->WaitForCalls(1));
  group = nullptr;
  EXPECT_TRUE(work->IsCompleted());
  EXPECT_THAT(MessageOf(work->status()), HasSubstr("the group was destroyed"));
}

TEST(PendingCallsTest, CloseWaitsForWhatIsPending) {
  const auto group = MakeDeferredGroup();
  const auto backend = DeferredBackend::Last();
  const auto work = *group->AllReduceAsync(Tensor::Zeros(DType::kFloat32, {4}));
  ASSERT_TRUE(backend->WaitForCalls(1));
  const ScopedThread device([&] {
    absl::SleepFor(absl::Milliseconds(50));
    backend->Finish(0, 0);
  });
  group->Close(kTimeout);
  EXPECT_TRUE(work->IsCompleted());
  EXPECT_TRUE(work->status().ok()) << work->status();
}

TEST(PendingCallsTest, CloseEndsWhatIsPendingAtItsTimeout) {
  const auto group = MakeDeferredGroup();
  const auto backend = DeferredBackend::Last();
  const auto work = *group->AllReduceAsync(Tensor::Zeros(DType::kFloat32, {4}));
  ASSERT_TRUE(backend->WaitForCalls(1));
  group->Close(absl::Milliseconds(20));
  EXPECT_THAT(MessageOf(work->Wait(kTimeout)), HasSubstr("is closed"));
}

TEST(PendingCallsTest, ACallThatNeverEndsTimesOut) {
  const auto group = MakeDeferredGroup();
  const auto backend = DeferredBackend::Last();
  const Tensor tensor = Tensor::Zeros(DType::kFloat32, {4});
  const auto work = *group->AllReduceAsync(tensor, ReduceOp::kSum, absl::Milliseconds(30));
  EXPECT_EQ(KindOf(work->Wait(kTimeout)), ErrorKind::kTimeout);
  EXPECT_EQ(work->state(), Work::State::kTimedOut);
  const auto other = MakeDeferredGroup();
  const absl::Status status = other->AllReduce(tensor, ReduceOp::kSum, absl::Milliseconds(30));
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(MessageOf(status), HasSubstr("all_reduce #0"));
}

TEST(PendingCallsTest, TensorsAreKeptUntilTheCallHasEnded) {
  const auto group = MakeDeferredGroup();
  const auto backend = DeferredBackend::Last();
  Watched watched;
  auto work = *group->AllReduceAsync(*watched.tensor);
  ASSERT_TRUE(backend->WaitForCalls(1));
  work = nullptr;
  watched.tensor.reset();
  EXPECT_FALSE(watched.alive.expired());
  backend->Finish(0, 0);
  // The queue's thread may still hold the operation that it has issued.
  for (int i = 0; i < 2000 && !watched.alive.expired(); ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(watched.alive.expired());
}

absl::Status Interrupted() { return InterruptedError("interrupted"); }

TEST(PendingCallsTest, AnInterruptedCallKeepsItsTensorsUntilItHasEnded) {
  const auto group = MakeDeferredGroup();
  const auto backend = DeferredBackend::Last();
  Watched watched;
  {
    const InterruptScope scope(&Interrupted);
    const absl::Status status = group->AllReduce(*watched.tensor);
    EXPECT_TRUE(IsInterrupted(status)) << status;
  }
  watched.tensor.reset();
  // The group has failed, which has ended the call.
  EXPECT_TRUE(watched.alive.expired());
  EXPECT_FALSE(group->status().ok());
}

// Of one tensor the backend gets parts.
TEST(PendingCallsTest, ATensorIsKeptUntilTheCallOnItsPartsHasEnded) {
  const auto group = MakeDeferredGroup();
  const auto backend = DeferredBackend::Last();
  backend->OutliveAborts();
  ASSERT_TRUE(group->SetTimeout(absl::Milliseconds(20)).ok());
  Watched output;
  {
    const Watched input;
    EXPECT_EQ(KindOf(group->AllToAllSingle(*output.tensor, *input.tensor)), ErrorKind::kTimeout);
  }
  output.tensor.reset();
  EXPECT_FALSE(output.alive.expired());
  backend->Finish(0, 0);
  EXPECT_TRUE(output.alive.expired());
}

TEST(PendingCallsTest, ADerivedCollectiveStoresItsResultsWhenItsCallHasEnded) {
  const auto group = MakeDeferredGroup();
  const auto backend = DeferredBackend::Last();
  std::vector<float> a = {1, 2}, b = {3};
  const auto work = *group->AllReduceCoalescedAsync({Tensor::Of(a), Tensor::Of(b)});
  ASSERT_TRUE(backend->WaitForCalls(1));
  EXPECT_FALSE(work->IsCompleted());
  backend->Finish(0, 0);
  EXPECT_TRUE(work->Wait(kTimeout).ok());
  EXPECT_THAT(a, ElementsAre(1, 2));
  EXPECT_THAT(b, ElementsAre(3));
}

TEST(PendingCallsTest, ADerivedCollectiveThatFailsLateStoresNothing) {
  const auto group = MakeDeferredGroup();
  const auto backend = DeferredBackend::Last();
  std::vector<float> a = {1, 2};
  const auto work = *group->AllReduceCoalescedAsync({Tensor::Of(a)});
  ASSERT_TRUE(backend->WaitForCalls(1));
  backend->Finish(0, NetworkError("rank 1 was lost"));
  EXPECT_THAT(MessageOf(work->Wait(kTimeout)),
              AllOf(HasSubstr("all_reduce_coalesced #0"), HasSubstr("rank 1 was lost")));
  EXPECT_THAT(a, ElementsAre(1, 2));
}

// Many threads, calls that end on other threads, and an abort in the middle: every call ends.
TEST(PendingCallsTest, EveryCallEndsWhenTheGroupIsAbortedAtAnyMoment) {
  for (int round = 0; round < 20; ++round) {
    auto group = MakeDeferredGroup(2);
    const auto backend = DeferredBackend::Last();
    std::atomic<int> ended{0};
    constexpr int kCalls = 40;
    std::vector<std::shared_ptr<Work>> works;
    {
      const ScopedThread device([&] {
        for (int i = 0; i < kCalls / 2; ++i) {
          if (!backend->WaitForCalls(i + 1)) return;
          backend->Finish(i, 0);
        }
      });
      for (int i = 0; i < kCalls; ++i) {
        auto work = group->AllReduceAsync(Tensor::Zeros(DType::kFloat32, {4}));
        ASSERT_TRUE(work.ok()) << work.status();
        (*work)->OnComplete([&](const absl::Status&) { ++ended; });
        works.push_back(*std::move(work));
      }
    }
    group->Abort("the test says so");
    for (const auto& work : works) work->Wait(kTimeout).IgnoreError();
    // A wait may return before the callback has been called, on the thread that finishes the call:
    // that of the queue, which the group's end waits for.
    group = nullptr;
    EXPECT_EQ(ended, kCalls);
  }
}

}  // namespace
}  // namespace syncline
