// What ranks of backend nccl tell each other, in one board that they share or in boards of their
// own that a store keeps alike: the same. No device is needed.
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "backends/common/peer_processes.h"
#include "backends/common/peer_table.h"
#include "backends/nccl/fingerprint_board.h"
#include "backends/nccl/fingerprint_store.h"
#include "backends/nccl/nccl_group.h"
#include "core/tensor/segment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/support/ranks.h"

namespace syncline::nccl {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSize = 3;

enum class Kind { kShared, kOfStore };

// The ranks of a group, on one thread.
class Boards {
 public:
  explicit Boards(Kind kind, MismatchCheck check = MismatchCheck::kOn)
      : store_(std::make_shared<HashStore>()) {
    const size_t bytes = FingerprintBoard::BytesFor(kSize);
    std::optional<tensor::Segment> segment;
    if (kind == Kind::kShared) {
      segment = tensor::Segment::Create(bytes).value();
      EXPECT_TRUE(segment->Reserve(0, bytes).ok());
    }
    groups_.resize(kSize);
    mirrors_.resize(kSize);
    const auto statuses = RunRanks(kSize, [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(auto peers,
                                backends::PeerTable::Join(*store_, rank, kSize, std::string(),
                                                          Deadline(absl::Minutes(1))));
      backends::PeerProcesses processes(peers);
      absl::StatusOr<tensor::Segment> memory;
      if (segment.has_value()) {
        memory = tensor::Segment::Map(dup(segment->descriptor()), bytes);
      } else {
        memory = tensor::Segment::Create(bytes);
      }
      SYNCLINE_RETURN_IF_ERROR(memory.status());
      auto& group = groups_[static_cast<size_t>(rank)];
      group = std::make_shared<NcclGroup>(*std::move(memory), std::move(peers),
                                          std::move(processes), check);
      if (segment.has_value()) return absl::OkStatus();
      auto& mirror = mirrors_[static_cast<size_t>(rank)];
      mirror = std::make_unique<FingerprintStore>(store_, group);
      return mirror->Start();
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  }

  NcclGroup& group(int rank) { return *groups_[static_cast<size_t>(rank)]; }
  FingerprintBoard& board(int rank) { return group(rank).board(); }
  HashStore& store() { return *store_; }

  PublishedCall Publish(int rank, const Collective& call, uint64_t sequence) {
    CallContext context = {sequence, Deadline(absl::Minutes(1))};
    context.collective = &call;
    PublishedCall published(context);
    EXPECT_TRUE(group(rank).Publish({&call, 1}, context, published).ok());
    return published;
  }

  // Waits until `holds`, which takes a store some rounds.
  static bool Await(const std::function<bool()>& holds) {
    const Deadline deadline(absl::Seconds(30));
    while (!holds()) {
      if (deadline.Expired()) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

 private:
  const std::shared_ptr<HashStore> store_;
  std::vector<std::shared_ptr<NcclGroup>> groups_;
  std::vector<std::unique_ptr<FingerprintStore>> mirrors_;
};

class NcclBoardsTest : public testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, NcclBoardsTest, testing::Values(Kind::kShared, Kind::kOfStore),
                         [](const auto& info) {
                           return info.param == Kind::kShared ? "shared" : "of_store";
                         });

const Tensor& Ten() {
  static const auto* const tensor = new Tensor(Tensor::Zeros(DType::kFloat32, {10}));
  return *tensor;
}

Collective Sum() { return Collective::AllReduce(Ten(), ReduceOp::kSum); }

TEST_P(NcclBoardsTest, AVerdictTakesTheCallsOfAllRanks) {
  Boards boards(GetParam());
  const auto first = boards.Publish(0, Sum(), 5);
  EXPECT_EQ(boards.group(0).Verdict(first), std::nullopt);
  const auto second = boards.Publish(1, Sum(), 5);
  EXPECT_TRUE(Boards::Await([&] { return boards.board(0).Published(1) == 1; }));
  EXPECT_EQ(boards.group(0).Verdict(first), std::nullopt);
  boards.Publish(2, Sum(), 5);
  for (const auto& [rank, call] : {std::make_pair(0, &first), std::make_pair(1, &second)}) {
    EXPECT_TRUE(Boards::Await([&, rank = rank, call = call] {
      return boards.group(rank).Verdict(*call) == absl::OkStatus();
    }));
  }
}

TEST_P(NcclBoardsTest, AMismatchIsFoundThoughARankHasNotCome) {
  Boards boards(GetParam());
  const auto first = boards.Publish(0, Sum(), 5);
  const auto second = boards.Publish(1, Collective::AllReduce(Ten(), ReduceOp::kMax), 5);
  for (const auto& [rank, call] : {std::make_pair(0, &first), std::make_pair(1, &second)}) {
    absl::Status status;
    EXPECT_TRUE(Boards::Await([&, rank = rank, call = call] {
      status = boards.group(rank).Check(*call);
      return !status.ok();
    }));
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 0 called all_reduce #5 (float32, 10 elements, sum)"),
                      HasSubstr("rank 1 called all_reduce #5 (float32, 10 elements, max)")));
    EXPECT_THAT(RanksOf(status), ElementsAre(0, 1));
  }
  // The third learns of it when it looks.
  EXPECT_TRUE(Boards::Await([&] { return !boards.group(2).Failure().ok(); }));
  EXPECT_EQ(KindOf(boards.group(2).Failure()), ErrorKind::kMismatch);
}

TEST_P(NcclBoardsTest, DevicesAreComparedByTheOrderOfTheirFirstUse) {
  Boards boards(GetParam());
  float element = 0;
  const auto on = [&](int device) {
    return Tensor(&element, DType::kFloat32, {1}, {}, {DeviceType::kCuda, device});
  };
  // Each rank has two devices of its own, which it uses in turns.
  uint64_t sequence = 0;
  std::vector<PublishedCall> last;
  for (const int device : {0, 1, 0, 1}) {
    last.clear();
    for (int rank = 0; rank < kSize; ++rank) {
      const Tensor tensor = on(2 * rank + device);
      last.push_back(boards.Publish(rank, Collective::AllReduce(tensor, ReduceOp::kSum), sequence));
    }
    ++sequence;
  }
  EXPECT_TRUE(Boards::Await([&] { return boards.group(0).Verdict(last[0]) == absl::OkStatus(); }));
  const Tensor first = on(0), second = on(3);
  const auto waiting = boards.Publish(0, Collective::AllReduce(first, ReduceOp::kSum), sequence);
  boards.Publish(1, Collective::AllReduce(second, ReduceOp::kSum), sequence);
  absl::Status status;
  EXPECT_TRUE(Boards::Await([&] {
    status = boards.group(0).Check(waiting);
    return !status.ok();
  }));
  EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 0 called all_reduce #4"), HasSubstr("on cuda:0, the first"),
                    HasSubstr("rank 1 called all_reduce #4"), HasSubstr("on cuda:3, the second")));
  EXPECT_THAT(RanksOf(status), ElementsAre(0, 1));
}

TEST_P(NcclBoardsTest, UnevenSplitsThatFitGoTogether) {
  Boards boards(GetParam());
  std::vector<PublishedCall> calls;
  for (int rank = 0; rank < kSize; ++rank) {
    std::vector<Tensor> inputs, outputs;
    for (int other = 0; other < kSize; ++other) {
      inputs.push_back(Tensor::Zeros(DType::kInt8, {rank * 3 + other}));
      outputs.push_back(Tensor::Zeros(DType::kInt8, {other * 3 + rank}));
    }
    calls.push_back(boards.Publish(rank, Collective::AllToAll(outputs, inputs), 1));
  }
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_TRUE(Boards::Await([&] {
      return boards.group(rank).Verdict(calls[static_cast<size_t>(rank)]) == absl::OkStatus();
    }));
  }
}

TEST_P(NcclBoardsTest, MessagesAreComparedBetweenTheirTwoRanks) {
  Boards boards(GetParam());
  const Tensor nine = Tensor::Zeros(DType::kFloat32, {9});
  const auto fits = boards.Publish(0, Collective::Send(Ten(), 1), 0);
  boards.Publish(1, Collective::Recv(Ten(), 0), 0);
  EXPECT_TRUE(Boards::Await([&] { return boards.group(0).Verdict(fits) == absl::OkStatus(); }));
  boards.Publish(2, Collective::Send(Ten(), 1), 0);
  const auto misfit = boards.Publish(1, Collective::Recv(nine, 2), 0);
  absl::Status status;
  EXPECT_TRUE(Boards::Await([&] {
    status = boards.group(1).Check(misfit);
    return !status.ok();
  }));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 2 called send #0 to rank 1 (float32, 10 elements"),
                    HasSubstr("rank 1 called recv #0 from rank 2 (float32, 9 elements")));
}

TEST_P(NcclBoardsTest, MessagesWithoutAPlaceArePublishedInOrderOnceThereIsOne) {
  Boards boards(GetParam());
  const Channel channel = {0, 1};
  const uint64_t messages = 5 * FingerprintBoard::kMessages + 3;
  std::vector<PublishedCall> sent;
  for (uint64_t i = 0; i < messages; ++i) {
    sent.push_back(boards.Publish(0, Collective::Send(Ten(), 1), i));
  }
  EXPECT_EQ(boards.board(0).Published(channel, 0), FingerprintBoard::kMessages);
  EXPECT_TRUE(boards.board(0).HasRoom(channel));
  EXPECT_EQ(boards.group(0).Verdict(sent.back()), std::nullopt);
  std::vector<PublishedCall> received;
  for (uint64_t i = 0; i < messages; ++i) {
    received.push_back(boards.Publish(1, Collective::Recv(Ten(), 0), i));
    // A receive of this number must not be taken for one that fits what has not been published.
    if (i == FingerprintBoard::kMessages) {
      EXPECT_EQ(boards.group(1).Verdict(received.back()), std::nullopt);
    }
  }
  EXPECT_TRUE(Boards::Await([&] {
    const bool is_known = boards.group(0).Verdict(sent.back()) == absl::OkStatus();
    return boards.group(1).Verdict(received.back()) == absl::OkStatus() && is_known;
  }));
  EXPECT_EQ(boards.board(1).Published(channel, 0), messages);
}

TEST_P(NcclBoardsTest, ARankIsNotAheadByMoreMessagesThanMayWait) {
  Boards boards(GetParam());
  const uint64_t most = FingerprintBoard::kMessages + FingerprintBoard::kWaitingMessages;
  for (uint64_t i = 0; i < most; ++i) boards.Publish(0, Collective::Send(Ten(), 1), i);
  EXPECT_FALSE(boards.board(0).HasRoom({0, 1}));
  EXPECT_TRUE(boards.board(0).HasRoom({1, 0}));
  CallContext context = {most, Deadline(absl::Milliseconds(20))};
  const Collective call = Collective::Send(Ten(), 1);
  context.collective = &call;
  PublishedCall late(context);
  EXPECT_EQ(KindOf(boards.group(0).Publish({&call, 1}, context, late)), ErrorKind::kTimeout);
}

TEST_P(NcclBoardsTest, PlacesAreReusedOnceAllHaveCompared) {
  Boards boards(GetParam());
  const uint64_t calls = FingerprintBoard::kCalls;
  for (uint64_t i = 0; i < calls; ++i) boards.Publish(0, Sum(), i);
  EXPECT_FALSE(boards.board(0).HasRoom());
  for (int rank = 1; rank < kSize; ++rank) {
    for (uint64_t i = 0; i < calls; ++i) boards.Publish(rank, Sum(), i);
  }
  // Each rank compares when it looks at a call of its own.
  EXPECT_TRUE(Boards::Await([&] {
    for (int rank = 0; rank < kSize; ++rank) boards.board(rank).Compare(calls);
    return boards.board(0).HasRoom();
  }));
  const auto more = boards.Publish(0, Sum(), calls);
  for (int rank = 1; rank < kSize; ++rank) boards.Publish(rank, Sum(), calls);
  EXPECT_TRUE(Boards::Await([&] { return boards.group(0).Verdict(more) == absl::OkStatus(); }));
}

TEST_P(NcclBoardsTest, WhoHasLeftIsNamedUnlessItHadMadeTheCall) {
  Boards boards(GetParam());
  const auto made = boards.Publish(0, Sum(), 0);
  boards.Publish(2, Sum(), 0);
  boards.group(2).Close(BackendError("enough"), [] { return false; });
  EXPECT_TRUE(Boards::Await([&] { return boards.board(0).LeaveReason(2).has_value(); }));
  EXPECT_TRUE(boards.group(0).Check(made).ok());
  const auto next = boards.Publish(0, Sum(), 1);
  const absl::Status status = boards.group(0).Check(next);
  EXPECT_EQ(KindOf(status), ErrorKind::kBackend) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has left the group: enough"));
  EXPECT_THAT(RanksOf(status), ElementsAre(2));
}

// Of a group whose graphs may be launched at any time.
TEST_P(NcclBoardsTest, ARankThatHasEndedFailsTheGroupThoughNoCallIsPending) {
  Boards boards(GetParam());
  boards.group(0).CheckPeers();
  EXPECT_TRUE(boards.group(0).Failure().ok());
  boards.group(0).SetLost(WithRanks(NetworkError("rank 2 has ended"), {2}));
  boards.group(0).CheckPeers();
  EXPECT_EQ(KindOf(boards.group(0).Failure()), ErrorKind::kNetwork);
  EXPECT_TRUE(Boards::Await([&] { return !boards.group(1).Failure().ok(); }));
  EXPECT_THAT(RanksOf(boards.group(1).Failure()), ElementsAre(2));
}

TEST_P(NcclBoardsTest, AFailureOfOneRankIsThatOfAllWithItsRanks) {
  Boards boards(GetParam());
  boards.group(1).Fail(WithRanks(TimeoutError("late after 3s"), {2})).IgnoreError();
  const auto waiting = boards.Publish(0, Sum(), 4);
  absl::Status status;
  EXPECT_TRUE(Boards::Await([&] {
    status = boards.group(0).Check(waiting);
    return !status.ok();
  }));
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("all_reduce #4"), HasSubstr("rank 1"),
                                                   HasSubstr("reported: late after 3s")));
  EXPECT_THAT(RanksOf(status), ElementsAre(2));
  // The first cause stays.
  EXPECT_EQ(boards.group(0).Fail(BackendError("later")), status);
}

TEST_P(NcclBoardsTest, ARequestReachesTheOtherEndAlone) {
  Boards boards(GetParam());
  boards.board(0).Request({0, 2}, absl::Seconds(3));
  EXPECT_TRUE(Boards::Await([&] { return boards.board(2).Requested({0, 2}).has_value(); }));
  EXPECT_EQ(boards.board(2).Requested({0, 2}), absl::Seconds(3));
  EXPECT_EQ(boards.board(2).Requested({2, 0}), std::nullopt);
  EXPECT_EQ(boards.board(1).Requested({0, 1}), std::nullopt);
  boards.board(1).Request({0, 1}, absl::InfiniteDuration());
  EXPECT_TRUE(Boards::Await([&] { return boards.board(0).Requested({0, 1}).has_value(); }));
  EXPECT_EQ(boards.board(0).Requested({0, 1}), absl::InfiniteDuration());
}

TEST(NcclStoreTest, WhatAllHaveReadIsRemovedFromTheStore) {
  auto boards = std::make_unique<Boards>(Kind::kOfStore);
  for (uint64_t i = 0; i < 20; ++i) {
    for (int rank = 0; rank < kSize; ++rank) boards->Publish(rank, Sum(), i);
    EXPECT_TRUE(Boards::Await([&] {
      for (int rank = 0; rank < kSize; ++rank) boards->board(rank).Compare(i + 1);
      return boards->board(0).Compare(i + 1) == absl::OkStatus();
    }));
  }
  EXPECT_TRUE(Boards::Await([&] { return boards->store().Keys("calls")->empty(); }));
}

}  // namespace
}  // namespace syncline::nccl
