// How operations of a group fail: what the errors say, and what is left.
#include <dirent.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/testing/fake_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/error_origin.h"
#include "syncline/process_group.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

FakeBackend::Behaviour Fails(const absl::Status& status) {
  return [status](FakeBackend&, OpKind, const CallContext&) { return status; };
}

FakeBackend::Behaviour RunsOutOfMemory() {
  return [](FakeBackend&, OpKind, const CallContext&) -> absl::Status { throw std::bad_alloc(); };
}

int NumberOfThreads() {
  DIR* const tasks = opendir("/proc/self/task");
  int count = -2;  // "." and "..".
  while (readdir(tasks) != nullptr) ++count;
  closedir(tasks);
  return count;
}

constexpr char kOutOfMemory[] =
    "rank 0 of group 'default': all_reduce #0 (float32[3] on cpu, sum): out of memory";

TEST(ProcessGroupErrorsTest, RunningOutOfMemoryBreaksTheGroup) {
  auto group = MakeFakeGroup(RunsOutOfMemory());
  std::vector<float> values(3);
  const absl::Status status = group->AllReduce(Tensor::Of(values));
  EXPECT_EQ(KindOf(status), ErrorKind::kBackend);
  EXPECT_THAT(Message(status), HasSubstr(kOutOfMemory));
  EXPECT_THAT(Message(group->Barrier()), HasSubstr(kOutOfMemory));
  group->Close(absl::Seconds(20));
  group = nullptr;  // Waits for nothing.
}

TEST(ProcessGroupErrorsTest, RunningOutOfMemoryInTheBackgroundIsTheWorksError) {
  auto group = MakeFakeGroup(RunsOutOfMemory());
  std::vector<float> values(3);
  auto work = *group->AllReduceAsync(Tensor::Of(values));
  const absl::Status status = work->Wait(absl::Seconds(20));
  EXPECT_EQ(KindOf(status), ErrorKind::kBackend);
  EXPECT_THAT(Message(status), HasSubstr(kOutOfMemory));
}

TEST(ProcessGroupErrorsTest, AnExceptionIsAnErrorThatBreaksTheGroup) {
  const auto throws = [](FakeBackend&, OpKind, const CallContext&) -> absl::Status {
    throw std::runtime_error("no thread");
  };
  std::vector<float> values(3);
  auto group = MakeFakeGroup(throws);
  EXPECT_THAT(Message(group->AllReduce(Tensor::Of(values))),
              HasSubstr("all_reduce #0 (float32[3] on cpu, sum): unexpected error: no thread"));
  EXPECT_FALSE(group->status().ok());
  group = MakeFakeGroup(throws);
  EXPECT_THAT(Message((*group->BarrierAsync())->Wait(absl::Seconds(20))), HasSubstr("no thread"));
}

TEST(ProcessGroupErrorsTest, RunningOutOfMemoryAroundABackendsCallBreaksTheGroup) {
  auto group = MakeFakeGroup(Fails(absl::OkStatus()));
  float value = 0;
  // Only the buffers that the operation needs take this much.
  const Tensor huge(&value, DType::kFloat32, {int64_t{1} << 50});
  const absl::Status scaled = group->AllReduce(huge, ReduceOp::kPremulSum, {}, 0.5);
  EXPECT_EQ(KindOf(scaled), ErrorKind::kBackend);
  EXPECT_THAT(Message(scaled), HasSubstr("out of memory: cannot get 4503599627370496 bytes"));
  group = MakeFakeGroup(Fails(absl::OkStatus()));
  const absl::Status packed = group->BroadcastCoalesced({huge}, 0);
  EXPECT_EQ(KindOf(packed), ErrorKind::kBackend);
  EXPECT_THAT(Message(packed),
              HasSubstr("broadcast_coalesced #0 (float32[1125899906842624], root 0): out of "
                        "memory: cannot get 4503599627370496 bytes"));
  EXPECT_FALSE(group->status().ok());
}

// What the group makes of a backend's error.
absl::Status Told(const absl::Status& backends) {
  auto group = MakeFakeGroup(Fails(backends));
  std::vector<float> values(4);
  return group->AllReduce(Tensor::Of(values));
}

using Operations = std::vector<ErrorOrigin::Operation>;

absl::Status Timeout(const std::string& message, Operations operations, std::vector<int> ranks) {
  ErrorOrigin origin;
  origin.operations = std::move(operations);
  origin.ranks = std::move(ranks);
  return WithOrigin(TimeoutError(message), origin);
}

void ExpectOrigin(const absl::Status& status, const Operations& operations,
                  const std::vector<int>& ranks) {
  const auto origin = OriginOf(status);
  ASSERT_TRUE(origin.has_value()) << status;
  EXPECT_EQ(origin->operations, operations) << status;
  EXPECT_EQ(origin->ranks, ranks) << status;
  EXPECT_FALSE(origin->lacks_arguments) << status;
}

TEST(ProcessGroupErrorsTest, AnErrorWithoutAnOriginIsAboutItsOperation) {
  for (const char* text : {"rank 2 is gone", "all_reduce #0: rank 2 is gone",
                           "rank 0 called all_reduce #0, rank 1 called barrier #0"}) {
    const absl::Status told = Told(TimeoutError(text));
    EXPECT_EQ(Message(told), absl::StrCat("rank 0 of group 'default': all_reduce #0 (float32[4] ",
                                          "on cpu, sum): ", text));
    ExpectOrigin(told, {{"all_reduce", 0}}, {});
  }
}

TEST(ProcessGroupErrorsTest, AnErrorThatOnlyKnowsTheRanksIsAboutItsOperation) {
  const absl::Status told = Told(WithRanks(TimeoutError("rank 2 is gone"), {2}));
  EXPECT_EQ(Message(told),
            "rank 0 of group 'default': all_reduce #0 (float32[4] on cpu, sum): rank 2 is gone");
  ExpectOrigin(told, {{"all_reduce", 0}}, {2});
}

TEST(ProcessGroupErrorsTest, TheOperationIsSaidOnce) {
  const std::string text = "all_reduce #0 (float32, 4 elements, sum) failed after 3ms: rank 2 died";
  const absl::Status told = Told(Timeout(text, {{"all_reduce", 0}}, {2}));
  EXPECT_EQ(Message(told), "rank 0 of group 'default': " + text);
  EXPECT_EQ(KindOf(told), ErrorKind::kTimeout);
  ExpectOrigin(told, {{"all_reduce", 0}}, {2});
}

TEST(ProcessGroupErrorsTest, ABriefNameOfTheOperationGetsItsArguments) {
  ErrorOrigin origin;
  origin.operations = {{"all_reduce", 0}};
  origin.lacks_arguments = true;
  origin.ranks = {2};
  const absl::Status told = Told(WithOrigin(TimeoutError("all_reduce #0: rank 2 is gone"), origin));
  EXPECT_EQ(Message(told),
            "rank 0 of group 'default': all_reduce #0 (float32[4] on cpu, sum): rank 2 is gone");
  EXPECT_EQ(KindOf(told), ErrorKind::kTimeout);
  ExpectOrigin(told, {{"all_reduce", 0}}, {2});
  origin.operations = {{"barrier", 7}};
  const absl::Status others = Told(WithOrigin(TimeoutError("barrier #7: rank 2 is gone"), origin));
  EXPECT_EQ(Message(others),
            "rank 0 of group 'default': all_reduce #0 (float32[4] on cpu, sum): barrier #7: rank 2 "
            "is gone");
  ExpectOrigin(others, {{"barrier", 7}}, {2});
}

TEST(ProcessGroupErrorsTest, AMismatchQuotesTheOperationAndPutsItFirst) {
  const std::string text = "rank 0 called barrier #0, rank 1 called all_reduce #0 ()";
  const absl::Status told = Told(Timeout(text, {{"barrier", 0}, {"all_reduce", 0}}, {0, 1}));
  EXPECT_EQ(Message(told), "rank 0 of group 'default': " + text);
  ExpectOrigin(told, {{"all_reduce", 0}, {"barrier", 0}}, {0, 1});
}

TEST(ProcessGroupErrorsTest, AnErrorAboutAnotherOperationSaysBoth) {
  const std::string own = "rank 0 of group 'default': all_reduce #0 (float32[4] on cpu, sum): ";
  // Whatever the text looks like.
  const std::string text = "all_reduce #0: rank 1 is gone";
  for (const Operations& operations :
       {Operations{{"all_reduce", 1}}, Operations{{"barrier", 0}}, Operations{{"recv", 0, 1, 0}},
        Operations{{"all_reduce", 5}, {"barrier", 5}}}) {
    const absl::Status told = Told(Timeout(text, operations, {1}));
    EXPECT_EQ(Message(told), own + text);
    ExpectOrigin(told, operations, {1});
  }
}

TEST(ProcessGroupErrorsTest, ReceivesOfOneNumberFromTwoRanksAreTwoOperations) {
  const std::string text = "recv #0 from rank 1: rank 1 is gone";
  const auto fails = Fails(Timeout(text, {{"recv", 0, 1, 0}}, {1}));
  std::vector<float> values(1);
  const Tensor tensor = Tensor::Of(values);
  EXPECT_EQ(Message(MakeFakeGroup(fails, 3)->Recv(tensor, 1).status()),
            "rank 0 of group 'default': " + text);
  EXPECT_EQ(Message(MakeFakeGroup(fails, 3)->Recv(tensor, 2).status()),
            "rank 0 of group 'default': recv #0 (float32[1] on cpu, from rank 2, tag 0): " + text);
}

TEST(ProcessGroupErrorsTest, AReceiveOfAnotherRankIsAnotherOperation) {
  const std::string text = "recv #0 from rank 1: rank 1 is gone";
  const Operations of_rank_2 = {{"recv", 0, 1, 2}};
  std::vector<float> values(1);
  const absl::Status told =
      MakeFakeGroup(Fails(Timeout(text, of_rank_2, {1})), 3)->Recv(Tensor::Of(values), 1).status();
  EXPECT_EQ(Message(told),
            "rank 0 of group 'default': recv #0 (float32[1] on cpu, from rank 1, tag 0): " + text);
  ExpectOrigin(told, of_rank_2, {1});
}

TEST(ProcessGroupErrorsTest, LaterCallsTellTheOriginOfWhatBrokeTheGroup) {
  auto group = MakeFakeGroup(Fails(WithRanks(NetworkError("rank 2 died"), {2})), 3);
  std::vector<float> values(4);
  ExpectOrigin(group->AllReduce(Tensor::Of(values)), {{"all_reduce", 0}}, {2});
  ExpectOrigin(group->Barrier(), {{"all_reduce", 0}}, {2});
  ExpectOrigin(group->status(), {{"all_reduce", 0}}, {2});
}

TEST(ProcessGroupErrorsTest, ARefusedCallSaysWhatToDo) {
  auto group = MakeFakeGroup(Fails(NetworkError("rank 2 died")));
  EXPECT_FALSE(group->Barrier().ok());
  EXPECT_EQ(Message(group->Barrier()),
            "barrier was refused because group 'default' can no longer be used (make a new one, or "
            "shrink it to the ranks that are left): rank 0 of group 'default': barrier #0: rank 2 "
            "died");
}

TEST(ProcessGroupErrorsTest, ATagThatIsUsedOnceLeavesNoThread) {
  constexpr int kTags = 1000;
  auto group = MakeFakeGroup(Fails(absl::OkStatus()), 2);
  std::vector<float> values(1);
  for (int tag = 0; tag < kTags; ++tag) {
    auto work = group->SendAsync(Tensor::Of(values), 1, tag);
    ASSERT_TRUE(work.ok()) << work.status();
    ASSERT_TRUE((*work)->Wait(absl::Seconds(20)).ok());
  }
  EXPECT_LT(NumberOfThreads(), kTags / 4);
}

TEST(ProcessGroupErrorsTest, MessagesAreNumberedForEachPeerWhateverTheTag) {
  auto group = MakeFakeGroup(Fails(absl::OkStatus()), 3);
  std::vector<float> values(1);
  const Tensor tensor = Tensor::Of(values);
  std::vector<std::string> expected;
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(group->Send(tensor, 1, /*tag=*/i % 150).ok());
    expected.push_back("send #" + std::to_string(i));
  }
  EXPECT_TRUE(group->Send(tensor, 2, 0).ok());
  EXPECT_TRUE(group->Recv(tensor, 1, 7).ok());
  expected.push_back("send #0");
  expected.push_back("recv #0");
  EXPECT_THAT(FakeBackend::Last()->calls(), testing::ElementsAreArray(expected));
}

}  // namespace
}  // namespace syncline
