// How operations of a group fail: what the errors say, and what is left.
#include <dirent.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/group/process_group.h"
#include "core/testing/fake_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

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
std::string Told(const std::string& backends) {
  auto group = MakeFakeGroup(Fails(TimeoutError(backends)));
  std::vector<float> values(4);
  return Message(group->AllReduce(Tensor::Of(values)));
}

TEST(ProcessGroupErrorsTest, TheOperationIsSaidOnce) {
  EXPECT_EQ(Told("rank 2 is gone"),
            "rank 0 of group 'default': all_reduce #0 (float32[4] on cpu, sum): rank 2 is gone");
  EXPECT_EQ(Told("all_reduce #0: rank 2 is gone"),
            "rank 0 of group 'default': all_reduce #0 (float32[4] on cpu, sum): rank 2 is gone");
  EXPECT_EQ(Told("all_reduce #0 (float32, 4 elements, sum) failed after 3ms: rank 2 died"),
            "rank 0 of group 'default': all_reduce #0 (float32, 4 elements, sum) failed after 3ms: "
            "rank 2 died");
  EXPECT_EQ(
      Told("rank 0 called all_reduce #0 (float32, 4 elements, sum), rank 1 called barrier #0"),
      "rank 0 of group 'default': rank 0 called all_reduce #0 (float32, 4 elements, sum), "
      "rank 1 called barrier #0");
}

TEST(ProcessGroupErrorsTest, AnErrorAboutAnotherOperationSaysBoth) {
  const std::string own = "rank 0 of group 'default': all_reduce #0 (float32[4] on cpu, sum): ";
  for (const char* text : {"all_reduce #01: rank 2 is gone", "all_reduce #02 failed: rank 2 died",
                           "rank 0 called all_reduce #05 (), rank 1 called barrier #5",
                           "recv #7 from rank 1: rank 1 is gone"}) {
    EXPECT_EQ(Told(text), own + text);
  }
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
