// What only backend local does; the rest is in tests/backends/backend_conformance.cc.
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend_registry.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/support/backend_config.h"
#include "tests/support/ranks.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<std::shared_ptr<Backend>> Make(std::shared_ptr<Store> store, int rank, int size,
                                              absl::Duration timeout = absl::Seconds(30)) {
  return BackendRegistry::Make("local", OnLoopback(std::move(store), rank, size, timeout));
}

absl::Status Join(std::shared_ptr<Store> store, int rank, int size,
                  absl::Duration timeout = absl::Seconds(30)) {
  return Make(std::move(store), rank, size, timeout).status();
}

TEST(LocalBackendTest, ARankInAnotherProcessIsRefused) {
  auto store = std::make_shared<HashStore>();
  const int other = getppid();
  ASSERT_TRUE(store->Set("group", absl::StrCat(other, "/1")).ok());
  const absl::Status status = Join(store, 1, 2);
  EXPECT_EQ(KindOf(status), ErrorKind::kBackend);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(absl::StrCat("rank 1 is in process ", getpid())),
                    HasSubstr(absl::StrCat("rank 0 is in process ", other)), HasSubstr("gloo")));
}

TEST(LocalBackendTest, RankZeroIsNamedIfItNeverComes) {
  const absl::Status status = Join(std::make_shared<HashStore>(), 1, 2, absl::Milliseconds(50));
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 of 2 has not joined"));
}

TEST(LocalBackendTest, RankZeroIsAtFaultIfItHasLeftBeforeAllHadJoined) {
  auto store = std::make_shared<HashStore>();
  ASSERT_TRUE(store->Set("group", absl::StrCat(getpid(), "/", int64_t{1} << 60)).ok());
  const absl::Status status = Join(store, 1, 2);
  EXPECT_EQ(KindOf(status), ErrorKind::kBackend);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 has left the group before"));
  EXPECT_EQ(RanksOf(status), std::vector<int>({0}));
}

TEST(LocalBackendTest, RanksMustAgreeOnTheSizeOfTheGroup) {
  auto store = std::make_shared<HashStore>();
  std::thread rank_0([&] { Join(store, 0, 2, absl::Seconds(10)).IgnoreError(); });
  const absl::Status status = Join(store, 1, 3);
  rank_0.join();
  EXPECT_EQ(KindOf(status), ErrorKind::kMismatch);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("a group of 3 ranks"), HasSubstr("rank 0 made one of 2")));
}

// The ends of a group whose ranks are this test's to play.
std::vector<std::shared_ptr<Backend>> MakeGroup(int size) {
  auto store = std::make_shared<HashStore>();
  std::vector<std::shared_ptr<Backend>> backends(size);
  for (const absl::Status& status : RunRanks(size, [&](int rank) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(backends[rank], Make(store, rank, size));
         return absl::OkStatus();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  return backends;
}

CallContext Context(uint64_t sequence, absl::Duration timeout = absl::Seconds(30)) {
  return {sequence, Deadline(timeout)};
}

TEST(LocalBackendTest, ATimeoutSaysWhatTheMissingRanksDidLast) {
  const auto group = MakeGroup(3);
  const Tensor tensor = Tensor::Zeros(DType::kInt8, {3});
  std::thread rank_1([&] {
    ASSERT_TRUE(RunAndWait(*group[1], Collective::Send(tensor, 2, 7), Context(4)).status().ok());
  });
  ASSERT_TRUE(RunAndWait(*group[2], Collective::Recv(tensor, 1, 7), Context(4)).ok());
  rank_1.join();
  const absl::Status status =
      RunAndWait(*group[0], Collective::Barrier(), Context(6, absl::Milliseconds(50))).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("barrier #6: ranks 1 and 2 have not arrived after 50ms"),
                    HasSubstr("rank 1's last call was send #4 to rank 2"),
                    HasSubstr("rank 2's last call was recv #4 from rank 1")));
}

TEST(LocalBackendTest, ARankThatLeavesBecauseOfOthersIsNotAtFault) {
  for (int source : {1, kAnySource}) {
    const auto group = MakeGroup(3);
    group[1]->Abort(WithRanks(NetworkError("rank 2 is lost"), {2}));
    group[2]->Abort(NetworkError("it is tired"));
    const Tensor tensor = Tensor::Zeros(DType::kInt8, {1});
    const absl::Status status =
        RunAndWait(*group[0], Collective::Recv(tensor, source), Context(0)).status();
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 1 has left the group: rank 2 is lost"));
    EXPECT_EQ(RanksOf(status), std::vector<int>({2}));
  }
}

// Waits until a thread of this process sleeps: one that receives has then begun to wait.
void AwaitAsleep(const std::atomic<pid_t>& thread) {
  const Deadline deadline(absl::Seconds(30));
  while (!deadline.Expired()) {
    std::this_thread::yield();
    if (thread == 0) continue;
    std::ifstream file(absl::StrCat("/proc/self/task/", thread.load(), "/stat"));
    std::string pid, name, state;
    if (file >> pid >> name >> state && state == "S") return;
  }
  FAIL() << "the thread does not sleep";
}

TEST(LocalBackendTest, ATimeoutSaysWhereTheOtherRankWaits) {
  const auto group = MakeGroup(2);
  const Tensor tensor = Tensor::Zeros(DType::kInt8, {3});
  absl::Status other;
  std::atomic<pid_t> self{0};
  std::thread rank_1([&] {
    self = gettid();
    other = RunAndWait(*group[1], Collective::Recv(tensor, 0, 7), Context(0)).status();
  });
  AwaitAsleep(self);
  const absl::Status status =
      RunAndWait(*group[0], Collective::Barrier(), Context(1, absl::Seconds(1))).status();
  rank_1.join();
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 waits in recv #0 from rank 0"));
  EXPECT_EQ(other, status);
}

TEST(LocalBackendTest, AReceiveFromAnyRankThatNobodySendsToSaysWhatAllOthersDo) {
  const auto group = MakeGroup(3);
  const auto source =
      RunAndWait(*group[0], Collective::Recv(Tensor::Zeros(DType::kInt8, {3}), kAnySource, 7),
                 Context(2, absl::Milliseconds(50)));
  EXPECT_EQ(KindOf(source.status()), ErrorKind::kTimeout);
  EXPECT_THAT(
      std::string(source.status().message()),
      AllOf(HasSubstr("recv #2 from any rank: no rank has made the matching call (tag 7) after "),
            HasSubstr("rank 1 has made no call yet"), HasSubstr("rank 2 has made no call yet")));
}

TEST(LocalBackendTest, AMessageGoesToTheReceiveThatWasCalledFirst) {
  const auto group = MakeGroup(3);
  const std::vector<int> sources = {kAnySource, 1, kAnySource};
  const std::vector<Tensor> received = {Bytes(DType::kInt8, 3, 0), Bytes(DType::kInt8, 3, 0),
                                        Bytes(DType::kInt8, 3, 0)};
  std::vector<int> senders(3);
  std::vector<std::thread> receivers;
  for (int i = 0; i < 3; ++i) {
    std::atomic<pid_t> self{0};
    receivers.emplace_back([&, i] {
      self = gettid();
      senders[i] =
          RunAndWait(*group[0], Collective::Recv(received[i], sources[i], 7), Context(i)).value();
    });
    AwaitAsleep(self);
  }
  const std::vector<int> order = {2, 1, 1};
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(RunAndWait(*group[order[i]], Collective::Send(Bytes(DType::kInt8, 3, 50 + i), 0, 7),
                           Context(i))
                    .ok());
  }
  for (std::thread& receiver : receivers) receiver.join();
  EXPECT_EQ(senders, order);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(SameBytes(received[i], Bytes(DType::kInt8, 3, 50 + i)));
}

}  // namespace
}  // namespace syncline
