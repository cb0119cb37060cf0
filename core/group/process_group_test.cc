#include "syncline/process_group.h"

#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "core/testing/fake_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

FakeBackend::Behaviour Succeeds() {
  return [](FakeBackend&, OpKind, const CallContext&) { return absl::OkStatus(); };
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(ProcessGroupTest, OperationsAreNumberedInTheOrderOfIssue) {
  auto group = MakeFakeGroup(Succeeds());
  std::vector<float> values(3);
  ASSERT_TRUE(group->AllReduce(Tensor::Of(values)).ok());
  ASSERT_TRUE((*group->BarrierAsync())->Wait().ok());
  ASSERT_TRUE(group->Broadcast(Tensor::Of(values), 0).ok());
  EXPECT_THAT(FakeBackend::Last()->calls(),
              ElementsAre("all_reduce #0", "barrier #1", "broadcast #2"));
}

TEST(ProcessGroupTest, ASynchronousCallOnAnIdleGroupRunsOnTheCallersThread) {
  std::thread::id ran_on;
  auto group = MakeFakeGroup([&](FakeBackend&, OpKind, const CallContext&) {
    ran_on = std::this_thread::get_id();
    return absl::OkStatus();
  });
  ASSERT_TRUE(group->Barrier().ok());
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST(ProcessGroupTest, ASynchronousCallRunsAfterTheAsynchronousOnesBeforeIt) {
  absl::Notification go_on;
  auto group = MakeFakeGroup([&](FakeBackend&, OpKind kind, const CallContext&) {
    if (kind == OpKind::kAllReduce) go_on.WaitForNotificationWithTimeout(absl::Seconds(20));
    return absl::OkStatus();
  });
  std::vector<float> values(3);
  auto work = *group->AllReduceAsync(Tensor::Of(values));
  ASSERT_TRUE(FakeBackend::Last()->WaitForCalls(1));
  EXPECT_FALSE(work->IsCompleted());
  std::thread waiter([&] { EXPECT_TRUE(group->Barrier().ok()); });
  go_on.Notify();
  waiter.join();
  EXPECT_TRUE(work->IsCompleted());
  EXPECT_THAT(FakeBackend::Last()->calls(), ElementsAre("all_reduce #0", "barrier #1"));
}

TEST(ProcessGroupTest, SendAndRecvDoNotWaitForEachOtherOrForCollectives) {
  auto group = MakeFakeGroup(
      [](FakeBackend& self, OpKind, const CallContext&) { return self.WaitForAbort(); }, 3);
  std::vector<float> a(1), b(1), c(1), d(1);
  auto barrier = *group->BarrierAsync();
  auto recv = *group->RecvAsync(Tensor::Of(a), 1);
  auto send = *group->SendAsync(Tensor::Of(b), 1);
  auto tagged = *group->SendAsync(Tensor::Of(c), 1, /*tag=*/7);
  auto queued = *group->SendAsync(Tensor::Of(d), 1);  // Behind `send`.
  EXPECT_TRUE(FakeBackend::Last()->WaitForCalls(4));
  EXPECT_EQ(queued->state(), Work::State::kPending);
  group->Abort("the test is over");
  EXPECT_THAT(Message(recv->Wait()), HasSubstr("the test is over"));
  EXPECT_FALSE(queued->Wait().ok());
}

TEST(ProcessGroupTest, ABadArgumentIsRefusedAndTheGroupGoesOn) {
  auto group = MakeFakeGroup(Succeeds(), 3);
  std::vector<float> values(6);
  std::vector<double> doubles(6);
  std::vector<float> small(5);
  const Tensor good = Tensor::Of(values);
  const Tensor strided(values.data(), DType::kFloat32, {3}, {2});
  const Tensor constant(values.data(), DType::kFloat32, {6}, {}, {}, nullptr, Access::kReadOnly);
  const Tensor cuda(values.data(), DType::kFloat32, {6}, {}, {DeviceType::kCuda, 1});
  auto refused = [](const absl::Status& status, ErrorKind kind, const char* text) {
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(KindOf(status), kind) << status;
    EXPECT_THAT(Message(status), HasSubstr(text));
  };
  refused(group->AllReduce(strided), ErrorKind::kArgument, "contiguous");
  refused(group->AllReduce(constant), ErrorKind::kType, "read-only");
  refused(group->AllReduce(cuda), ErrorKind::kArgument, "cuda:1");
  refused(group->AllReduce(Tensor::Of(doubles)), ErrorKind::kUnsupported, "float64");
  refused(group->AllReduce(good, ReduceOp::kBxor), ErrorKind::kArgument, "bxor");
  refused(group->AllReduce(good, ReduceOp::kSum, absl::ZeroDuration()), ErrorKind::kArgument,
          "timeout must be positive");
  refused(group->Broadcast(good, 3), ErrorKind::kArgument, "0 to 2, not 3");
  refused(group->Broadcast(good, -1), ErrorKind::kArgument, "not -1");
  refused(group->Send(good, 0), ErrorKind::kArgument, "itself");
  refused(group->Recv(good, 5).status(), ErrorKind::kArgument, "src");
  refused(group->Send(good, 1, -2), ErrorKind::kArgument, "tag");
  refused(group->AllGather({good, good}, good), ErrorKind::kArgument, "each of the 3 ranks");
  refused(group->AllGather({good, good, good}, good), ErrorKind::kArgument, "share memory");
  refused(group->AllGather({Tensor::Of(small), good, good}, good), ErrorKind::kArgument,
          "sizes must be equal");
  refused(group->AllGather({good, Tensor::Of(doubles), good}, good), ErrorKind::kType, "one type");
  EXPECT_TRUE(FakeBackend::Last()->calls().empty());
  EXPECT_TRUE(group->status().ok());
  EXPECT_TRUE(group->AllReduce(good).ok());
  EXPECT_TRUE(group->Send(constant, 1).ok()) << "what is only read may be read-only";
}

TEST(ProcessGroupTest, ListsBelongToTheRootAlone) {
  auto group = MakeFakeGroup(Succeeds(), 3);
  std::vector<float> values(18);
  auto part = [&](int i) { return Tensor::Of(values).Slice(i * 2, 2); };
  const std::vector<Tensor> list = {part(0), part(1), part(2)};
  EXPECT_TRUE(group->Gather(list, part(3), /*root=*/0).ok());
  EXPECT_TRUE(group->Scatter(part(3), list, /*root=*/0).ok());
  EXPECT_TRUE(group->Gather({}, part(3), /*root=*/1).ok());
  EXPECT_TRUE(group->Scatter(part(3), {}, /*root=*/1).ok());
  for (const absl::Status& status :
       {group->Gather(list, part(3), 1), group->Scatter(part(3), list, 1)}) {
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
    EXPECT_THAT(Message(status), HasSubstr("for the root, rank 1, only; rank 0 must pass none"));
  }
  EXPECT_THAT(Message(group->Gather({}, part(3), 0)), HasSubstr("each of the 3 ranks, not 0"));
  EXPECT_THAT(Message(group->Scatter(part(3), {part(0)}, 0)), HasSubstr("not 1"));
}

TEST(ProcessGroupTest, WhatIsWrittenIsApartButForTheRanksOwnPart) {
  auto group = MakeFakeGroup(Succeeds(), 3);
  std::vector<float> values(12);
  auto part = [&](int i) { return Tensor::Of(values).Slice(i * 2, 2); };
  const std::vector<Tensor> list = {part(0), part(1), part(2)};
  EXPECT_TRUE(group->AllGather(list, part(0)).ok());
  EXPECT_TRUE(group->ReduceScatter(part(0), list).ok());
  EXPECT_TRUE(group->ReduceScatter(part(3), {part(0), part(0), part(0)}).ok()) << "only read";
  const Tensor across = Tensor::Of(values).Slice(1, 2);
  for (const absl::Status& status :
       {group->AllGather(list, part(1)), group->ReduceScatter(part(1), list),
        group->AllToAll(list, list), group->AllGather(list, across),
        group->AllToAll({part(3), part(4), part(5)}, {part(0), part(1), part(4)})}) {
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << status;
    EXPECT_THAT(Message(status), HasSubstr("shares memory with an output"));
  }
}

TEST(ProcessGroupTest, AFactorIsForPremulSumOnly) {
  auto group = MakeFakeGroup(Succeeds());
  std::vector<float> values(3, 1.0f);
  EXPECT_TRUE(group->AllReduce(Tensor::Of(values), ReduceOp::kPremulSum, {}, 0.5).ok());
  EXPECT_THAT(values, ElementsAre(0.5f, 0.5f, 0.5f));
  const absl::Status status = group->AllReduce(Tensor::Of(values), ReduceOp::kSum, {}, 0.5);
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
  EXPECT_THAT(Message(status), HasSubstr("premul_sum only"));
}

TEST(ProcessGroupTest, TheElementsOfAFailedPremulSumAreUntouched) {
  auto group =
      MakeFakeGroup([](FakeBackend&, OpKind, const CallContext&) { return BackendError("no"); });
  std::vector<float> values(3, 1.0f);
  EXPECT_FALSE(group->AllReduce(Tensor::Of(values), ReduceOp::kPremulSum, {}, 0.5).ok());
  EXPECT_THAT(values, ElementsAre(1.0f, 1.0f, 1.0f));
}

TEST(ProcessGroupTest, AReceiveFromAnySourceSaysWhoSent) {
  auto group = MakeFakeGroup(Succeeds(), 3);
  std::vector<float> values(3);
  EXPECT_EQ(*group->Recv(Tensor::Of(values), kAnySource), 1);
  EXPECT_EQ(*group->Recv(Tensor::Of(values), 2), 2);
  auto work = *group->RecvAsync(Tensor::Of(values), kAnySource);
  ASSERT_TRUE(work->Wait().ok());
  EXPECT_EQ(work->source_rank(), 1);
  auto barrier = *group->BarrierAsync();
  ASSERT_TRUE(barrier->Wait().ok());
  EXPECT_EQ(barrier->source_rank(), -1);
}

TEST(ProcessGroupTest, SplitsMustAddUpToTheFirstDimension) {
  auto group = MakeFakeGroup(Succeeds(), 3);
  std::vector<float> from(8), to(8);
  auto rows = [](std::vector<float>& v) { return Tensor::Of(v).Reshape({4, 2}); };
  EXPECT_TRUE(group->AllToAllSingle(rows(to), rows(from), {1, 0, 3}, {1, 2, 1}).ok());
  auto refused = [&](const ProcessGroup::Splits& out, const ProcessGroup::Splits& in) {
    const absl::Status status = group->AllToAllSingle(rows(to), rows(from), out, in);
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << status;
    return Message(status);
  };
  EXPECT_THAT(refused({}, {1, 2, 1}), HasSubstr("pass output_splits"));
  EXPECT_THAT(refused({1, 0, 3}, {1, 1, 1}), HasSubstr("add up to 3"));
  EXPECT_THAT(refused({1, 0, 3}, {1, 4, -1}), HasSubstr("add up to 4"));
  EXPECT_THAT(refused({1, 3}, {1, 2, 1}), HasSubstr("each of the 3 ranks, not 2"));
}

TEST(ProcessGroupTest, TheFirstErrorBreaksTheGroupAndIsQuotedLater) {
  auto group = MakeFakeGroup([](FakeBackend&, OpKind, const CallContext&) {
    return TimeoutError("rank 2 has not arrived after 30s");
  });
  std::vector<float> values(4096);
  absl::Status first = group->AllReduce(Tensor::Of(values));
  EXPECT_EQ(KindOf(first), ErrorKind::kTimeout);
  EXPECT_EQ(Message(first),
            "rank 0 of group 'default': all_reduce #0 (float32[4096] on cpu, sum): rank 2 has not "
            "arrived after 30s");
  absl::Status second = group->Barrier();
  EXPECT_EQ(KindOf(second), ErrorKind::kTimeout);
  EXPECT_THAT(Message(second), HasSubstr("can no longer be used"));
  EXPECT_THAT(Message(second), HasSubstr("rank 2 has not arrived after 30s"));
  EXPECT_THAT(FakeBackend::Last()->calls(), ElementsAre("all_reduce #0"));
  EXPECT_FALSE(FakeBackend::Last()->WaitForAbort().ok());
}

TEST(ProcessGroupTest, ACallThatWaitsForItsTurnKeepsItsOwnTimeout) {
  auto group = MakeFakeGroup(
      [](FakeBackend& self, OpKind, const CallContext&) { return self.WaitForAbort(); });
  std::vector<float> values(3);
  auto first = *group->AllReduceAsync(Tensor::Of(values));
  ASSERT_TRUE(FakeBackend::Last()->WaitForCalls(1));
  absl::Status status = group->Barrier(absl::Milliseconds(50));
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
  EXPECT_THAT(Message(status), HasSubstr("barrier: could not begin within 50ms"));
  EXPECT_FALSE(first->Wait().ok()) << "the group is broken: its peers wait for the barrier in vain";
}

TEST(ProcessGroupTest, ACompletionCallbackMayDropTheLastReferenceToItsGroup) {
  absl::Notification go_on, dropped;
  auto group = MakeFakeGroup([&](FakeBackend&, OpKind, const CallContext&) {
    go_on.WaitForNotificationWithTimeout(absl::Seconds(20));
    return absl::OkStatus();
  });
  auto work = *group->BarrierAsync();
  work->OnComplete([&](const absl::Status&) {
    group = nullptr;
    dropped.Notify();
  });
  go_on.Notify();
  EXPECT_TRUE(dropped.WaitForNotificationWithTimeout(absl::Seconds(20)));
}

TEST(ProcessGroupTest, CloseWaitsForOperationsInFlight) {
  absl::Notification go_on;
  auto group = MakeFakeGroup([&](FakeBackend&, OpKind, const CallContext&) {
    go_on.WaitForNotificationWithTimeout(absl::Seconds(20));
    return absl::OkStatus();
  });
  auto work = *group->BarrierAsync();
  std::thread closer([&] { group->Close(absl::Seconds(20)); });
  go_on.Notify();
  closer.join();
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_THAT(Message(group->Barrier()), HasSubstr("is closed"));
}

TEST(ProcessGroupTest, CloseAbortsWhatDoesNotEnd) {
  auto group = MakeFakeGroup(
      [](FakeBackend& self, OpKind, const CallContext&) { return self.WaitForAbort(); });
  auto work = *group->BarrierAsync();
  group->Close(absl::Milliseconds(1));
  EXPECT_THAT(Message(work->Wait()), HasSubstr("is closed"));
}

TEST(ProcessGroupTest, AForkedChildIsToldSoAndLeavesTheGroupToItsParent) {
  auto group = MakeFakeGroup(Succeeds());
  auto work = *group->BarrierAsync();
  ASSERT_TRUE(work->Wait().ok());  // There is a thread, which the child lacks.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const absl::Status status = group->Barrier();
    const bool told = KindOf(status) == ErrorKind::kBackend &&
                      Message(status).find("was forked after group 'default'") != std::string::npos;
    const bool waits = work->Wait().ok() || group->status().ok();
    group->Abort("the child's");
    group->Close();
    group = nullptr;
    const bool untouched = FakeBackend::Last().use_count() > 1;
    _exit(told && !waits && untouched ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(group->Barrier().ok());
}

TEST(ProcessGroupTest, DestroyingAGroupEndsItsOperations) {
  auto group = MakeFakeGroup(
      [](FakeBackend& self, OpKind, const CallContext&) { return self.WaitForAbort(); });
  auto work = *group->BarrierAsync();
  group = nullptr;
  EXPECT_THAT(Message(work->Wait()), HasSubstr("destroyed"));
}

}  // namespace
}  // namespace syncline
