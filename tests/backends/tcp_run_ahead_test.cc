// Backend tcp: ranks that go on as soon as they have given their data. A rank also hears of those
// whose data it does not take, and bytes bound what it gives. See run_ahead_test.cc.
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "backends/common/comparison.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/backends/run_ahead_ranks.h"
#include "tests/support/operations.h"
#include "tests/support/ranks.h"

namespace syncline::run_ahead {
namespace {

using backends::Comparison;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TcpRunAheadTest : public RunAheadTest {};
class TcpWithTwoRanksTest : public RunAheadTest {};
class TcpWithThreeRanksTest : public RunAheadTest {};
// What the one rank does that makes no call.
enum class Absence { kStaysAway, kLeaves };

class TcpWithFiveRanksTest : public RunAheadTest {
 protected:
  using Call = std::function<absl::Status(int rank, Backend& backend)>;

  // In a new group all ranks but `absent` make `call`; what it came to, by rank. One that leaves
  // does so after a barrier of all, call 4; one that stays away is there until the others are done.
  std::vector<absl::Status> RunWithoutOne(int absent, const Call& call,
                                          Absence absence = Absence::kStaysAway) const {
    const auto store = std::make_shared<HashStore>();
    Countdown ended(size() - 1);
    return RunRanks(size(), [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank, Comparison::kAsTheyGo, store));
      if (absence == Absence::kLeaves) SYNCLINE_RETURN_IF_ERROR(Barrier(*backend, 4));
      absl::Status status;
      if (rank != absent) {
        status = call(rank, *backend);
        ended.Step();
      } else if (absence == Absence::kLeaves) {
        backend.reset();
      }
      ended.Wait();
      return status;
    });
  }

  // Runs `body` for each number of a rank, all at once: their groups wait, which takes no
  // processor.
  void ForEachRankAtOnce(const std::function<void(int rank)>& body) const {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }
};
class TcpWithSeveralTakersTest : public RunAheadTest {};

INSTANTIATE_TEST_SUITE_P(Sizes, TcpRunAheadTest,
                         testing::Values(Case("tcp", 2), Case("tcp", 3), Case("tcp", 5),
                                         Case("tcp_streams", 3)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Sizes, TcpWithTwoRanksTest, testing::Values(Case("tcp", 2)), NameOf);
INSTANTIATE_TEST_SUITE_P(Sizes, TcpWithThreeRanksTest,
                         testing::Values(Case("tcp", 3), Case("tcp_streams", 3)), NameOf);
INSTANTIATE_TEST_SUITE_P(Sizes, TcpWithFiveRanksTest, testing::Values(Case("tcp", 5)), NameOf);
INSTANTIATE_TEST_SUITE_P(Sizes, TcpWithSeveralTakersTest,
                         testing::Values(Case("tcp", 3), Case("tcp", 5), Case("tcp_streams", 3)),
                         NameOf);

// The root waits before it would fill the kernel's buffers, and says for whom.
TEST_P(TcpRunAheadTest, AGiverOfManyBytesWaitsForARankThatDoesNotCome) {
  const int size = this->size();
  Countdown failed(1);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(rank));
    if (rank > 0) {
      failed.Wait();
      return Barrier(*backend, 0);
    }
    EXPECT_EQ(
        FirstFailure(0, 1,
                     [&](uint64_t sequence) { return Broadcast(*backend, sequence, 0, 64 << 10); }),
        absl::OkStatus());
    const absl::Status status = Broadcast(*backend, 2, 0, 64 << 10, kShort);
    failed.Step();
    return status;
  });
  EXPECT_EQ(KindOf(statuses[0]), ErrorKind::kTimeout) << statuses[0];
  EXPECT_THAT(RanksOf(statuses[0]), testing::Not(testing::IsEmpty()));
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("rank 1 ("));
}

// A rank that has given and is elsewhere since is not at fault, nor one that has left.
TEST_P(TcpWithSeveralTakersTest, OnlyTheRankThatHasNotGivenIsNamed) {
  const int size = this->size();
  for (const bool leaves : {false, true}) {
    SCOPED_TRACE(leaves);
    const auto store = std::make_shared<HashStore>();
    Countdown given(size - 2), failed(1);
    const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank, Comparison::kAsTheyGo, store));
      if (rank == size - 1) {
        failed.Wait();
        return absl::OkStatus();
      }
      if (rank == 0) given.Wait();
      const Spec spec{OpKind::kGather};  // To rank 0.
      const absl::Status status =
          RunAndWait(*backend, Build(spec, rank, size), {5, Deadline(kShort)}).status();
      if (rank == 0) {
        failed.Step();
        return status;
      }
      if (leaves) backend.reset();
      given.Step();
      failed.Wait();
      return status;
    });
    EXPECT_EQ(KindOf(statuses[0]), ErrorKind::kTimeout) << statuses[0];
    EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("gather #5"));
    EXPECT_THAT(RanksOf(statuses[0]), ElementsAre(size - 1)) << statuses[0];
    for (int rank = 1; rank < size - 1; ++rank) EXPECT_EQ(statuses[rank], absl::OkStatus());
  }
}

// The last rank leaves without having given: it is named, not those that left after they gave.
TEST_P(TcpWithSeveralTakersTest, OnlyTheRankThatLeftTooEarlyIsNamed) {
  const int size = this->size();
  Countdown gone(size - 1);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank));
    if (rank == 0) gone.Wait();
    absl::Status status;
    if (rank < size - 1) {
      status =
          RunAndWait(*backend, Build(Spec{OpKind::kGather}, rank, size), {5, Deadline(kTimeout)})
              .status();
    }
    if (rank > 0) {
      backend.reset();
      gone.Step();
    }
    return status;
  });
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("has left the group"));
  EXPECT_THAT(RanksOf(statuses[0]), ElementsAre(size - 1)) << statuses[0];
}

// Rank 1, which passes nothing on, does not come. It keeps nothing from the others that rank 0 has
// room to give them.
TEST_P(TcpWithSeveralTakersTest, ARankThatDoesNotComeKeepsNothingFromTheOthers) {
  const int size = this->size();
  Countdown joined(size), failed(1);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank));
    joined.StepAndWait();
    const auto call = [&](uint64_t sequence) {
      return Broadcast(*backend, sequence, 0, 64 << 10, rank == 0 ? kShort : kTimeout);
    };
    if (rank == 1) {
      failed.Wait();
      return absl::OkStatus();
    }
    const absl::Status status = FirstFailure(0, rank == 0 ? 5 : 2, call);
    if (rank == 0) failed.Step();
    failed.Wait();
    return status;
  });
  EXPECT_EQ(KindOf(statuses[0]), ErrorKind::kTimeout) << statuses[0];
  EXPECT_THAT(RanksOf(statuses[0]), ElementsAre(1)) << statuses[0];
  for (int rank = 1; rank < size; ++rank) EXPECT_EQ(statuses[rank], absl::OkStatus());
}

// Rank 2 passes on to rank 3 what it takes of the root.
TEST_P(TcpWithFiveRanksTest, WhoWaitsBehindARankThatDoesNotComeNamesThatOne) {
  for (const OpKind kind : {OpKind::kBroadcast, OpKind::kScatter}) {
    SCOPED_TRACE(Name(kind));
    const auto store = std::make_shared<HashStore>();
    Countdown failed(1);
    const auto statuses = RunRanks(size(), [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank, Comparison::kAsTheyGo, store));
      absl::Status status;
      if (rank != 2) {
        status =
            RunAndWait(*backend, Build(Spec{kind}, rank, size()), {5, Deadline(kShort)}).status();
      }
      if (rank == 3) failed.Step();
      failed.Wait();
      return status;
    });
    for (const int rank : {0, 1, 4}) EXPECT_EQ(statuses[rank], absl::OkStatus());
    EXPECT_EQ(KindOf(statuses[3]), ErrorKind::kTimeout) << statuses[3];
    EXPECT_THAT(RanksOf(statuses[3]), ElementsAre(2)) << statuses[3];
  }
}

// Ranks 0 and 1 meet through others: rank 0 waits for ranks 1, 2 and 4, of which it hears of 3.
TEST_P(TcpWithFiveRanksTest, OnlyTheRankThatDoesNotComeToAMeetingIsNamed) {
  for (const OpKind kind : {OpKind::kBarrier, OpKind::kAllReduce, OpKind::kAllGather}) {
    ForEachRankAtOnce([&](int absent) {
      SCOPED_TRACE(absl::StrCat(Name(kind), " without ", absent));
      const auto statuses = RunWithoutOne(absent, [&](int rank, Backend& backend) {
        return RunAndWait(backend, Build(Spec{kind}, rank, size()), {5, Deadline(kShort)}).status();
      });
      for (int rank = 0; rank < size(); ++rank) {
        if (rank == absent) continue;
        EXPECT_EQ(KindOf(statuses[rank]), ErrorKind::kTimeout) << statuses[rank];
        EXPECT_THAT(RanksOf(statuses[rank]), ElementsAre(absent)) << statuses[rank];
      }
    });
  }
}

// Ranks that meet through others, too, compare what has come before they say that one is late.
TEST_P(TcpWithFiveRanksTest, RanksThatMeetHearOfAnotherCallThoughOneIsAbsent) {
  ForEachRankAtOnce([&](int odd) {
    const int absent = (odd + 3) % size();
    SCOPED_TRACE(absl::StrCat(odd, " is odd, ", absent, " is absent"));
    const auto statuses = RunWithoutOne(absent, [&](int rank, Backend& backend) {
      const Tensor tensor = Tensor::Zeros(DType::kFloat32, {rank == odd ? 3 : 4});
      return RunAndWait(backend, Collective::AllReduce(tensor, ReduceOp::kSum),
                        {5, Deadline(kShort)})
          .status();
    });
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == absent) continue;
      ExpectMismatch(statuses[rank],
                     absl::StrCat("rank ", odd, " called all_reduce #5 (float32, 3 elements"),
                     " called all_reduce #5 (float32, 4 elements");
    }
  });
}

// The same where that rank leaves instead.
TEST_P(TcpWithFiveRanksTest, OnlyTheRankThatLeavesAMeetingIsNamed) {
  for (int leaving = 0; leaving < size(); ++leaving) {
    SCOPED_TRACE(leaving);
    const auto statuses = RunWithoutOne(
        leaving, [](int, Backend& backend) { return Barrier(backend, 5); }, Absence::kLeaves);
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == leaving) continue;
      EXPECT_THAT(std::string(statuses[rank].message()), HasSubstr("has left the group"));
      EXPECT_THAT(RanksOf(statuses[rank]), ElementsAre(leaving)) << statuses[rank];
    }
  }
}

// Rank 1 comes after rank 0 has given both, so it never sleeps, and goes to its receive having told
// nobody. With small buffers rank 0 may give only if rank 1 is there; but not where it gives
// nothing.
TEST_P(TcpWithTwoRanksTest, ARankWaitsForNoWordOfACallWithoutData) {
  setenv("SYNCLINE_SOCKET_BUFFER", "16384", 1);
  const auto statuses = RunRanks(2, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank));
    const Tensor message = Tensor::Zeros(DType::kUInt8, {1});
    if (rank == 1) absl::SleepFor(kShort);
    SYNCLINE_RETURN_IF_ERROR(Broadcast(*backend, 0, 0, 16 << 10));
    if (rank == 1) absl::SleepFor(kShort);
    SYNCLINE_RETURN_IF_ERROR(Broadcast(*backend, 1, 0, 0));
    const CallContext context{2, Deadline(kTimeout)};
    return rank == 0 ? RunAndWait(*backend, Collective::Send(message, 1), context).status()
                     : RunAndWait(*backend, Collective::Recv(message, 0), context).status();
  });
  unsetenv("SYNCLINE_SOCKET_BUFFER");
  for (const absl::Status& status : statuses) EXPECT_EQ(status, absl::OkStatus());
}

// Rank 2 meets in a call in which rank 0 does not, and rank 1, which is elsewhere, has told nobody
// of the call before.
TEST_P(TcpWithThreeRanksTest, ARankThatMeetsHearsOfAGiverThoughAnotherIsSilent) {
  Countdown given(1), ended(1);
  const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank));
    if (rank > 0) given.Wait();
    SYNCLINE_RETURN_IF_ERROR(Broadcast(*backend, 4, 0, 5));
    absl::Status status;
    if (rank == 0) {
      status = Broadcast(*backend, 5, 0, 5);
      given.Step();
    }
    if (rank == 2) {
      status = Barrier(*backend, 5);
      ended.Step();
    }
    ended.Wait();
    return status;
  });
  ExpectMismatch(statuses[2], "rank 0 called broadcast #5 (uint8, 5 elements, root 0)",
                 "rank 2 called barrier #5");
}

// Ranks 0 and 1 meet in different calls. Rank 2, which is elsewhere, has told nobody of the call
// before.
TEST_P(TcpWithThreeRanksTest, RanksThatMeetHearOfEachOtherThoughAnotherIsSilent) {
  Countdown ended(2);
  const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank));
    SYNCLINE_RETURN_IF_ERROR(Broadcast(*backend, 4, 0, 5));
    absl::Status status;
    // As rank 2 does not come, they compare what has come when time is up.
    const CallContext context{5, Deadline(kShort)};
    if (rank == 0) status = RunAndWait(*backend, Collective::Barrier(), context).status();
    if (rank == 1) {
      const Tensor tensor = Tensor::Zeros(DType::kFloat32, {3});
      status =
          RunAndWait(*backend, Collective::AllReduce(tensor, ReduceOp::kSum), context).status();
    }
    if (rank < 2) ended.Step();
    ended.Wait();
    return status;
  });
  for (const int rank : {0, 1}) {
    ExpectMismatch(statuses[rank], "rank 0 called barrier #5",
                   "rank 1 called all_reduce #5 (float32, 3 elements");
  }
}

// Rank 1 gives to rank 0, which does not come, and makes no other call. Rank 2 gets nothing of it.
TEST_P(TcpWithThreeRanksTest, ARankThatMeetsHearsOfOneThatGaveToAnother) {
  for (const OpKind kind : {OpKind::kReduce, OpKind::kGather}) {
    SCOPED_TRACE(Name(kind));
    const auto store = std::make_shared<HashStore>();
    Countdown given(1), ended(1);
    const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank, Comparison::kAsTheyGo, store));
      absl::Status status;
      if (rank == 1) {
        status = RunAndWait(*backend, Build(Spec{kind}, rank, 3), {5, Deadline(kTimeout)}).status();
        given.Step();
      }
      if (rank == 2) {
        given.Wait();
        status = Barrier(*backend, 5);
        ended.Step();
      }
      ended.Wait();
      return status;
    });
    EXPECT_EQ(statuses[1], absl::OkStatus());
    ExpectMismatch(statuses[2], absl::StrCat("rank 1 called ", Name(kind), " #5"),
                   "rank 2 called barrier #5");
  }
}

// Ranks 0 and 1 give to each other, and make no other call.
TEST_P(TcpWithThreeRanksTest, ARankThatMeetsHearsOfTwoRoots) {
  Countdown given(2), ended(1);
  const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank));
    absl::Status status;
    if (rank == 2) {
      given.Wait();
      status = Barrier(*backend, 5);
      ended.Step();
    } else {
      Spec spec{OpKind::kGather};
      spec.root = 1 - rank;
      status = RunAndWait(*backend, Build(spec, rank, 3), {5, Deadline(kTimeout)}).status();
      given.Step();
    }
    ended.Wait();
    return status;
  });
  EXPECT_EQ(statuses[0], absl::OkStatus());
  EXPECT_EQ(statuses[1], absl::OkStatus());
  EXPECT_EQ(KindOf(statuses[2]), ErrorKind::kMismatch) << statuses[2];
  EXPECT_THAT(std::string(statuses[2].message()), HasSubstr("rank 2 called barrier #5"));
}

// Rank 2 gives to another root, and goes elsewhere.
TEST_P(TcpWithThreeRanksTest, ARootHearsOfAGiverToAnotherRoot) {
  Countdown given(1), ended(1);
  const auto statuses = RunRanks(3, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank));
    Spec spec{OpKind::kGather};
    spec.root = rank == 2 ? 1 : 0;
    if (rank == 0) given.Wait();
    const absl::Status status =
        RunAndWait(*backend, Build(spec, rank, 3), {0, Deadline(kTimeout)}).status();
    if (rank == 2) given.Step();
    if (rank == 0) ended.Step();
    ended.Wait();
    return status;
  });
  // Rank 2 may have heard first, of rank 1.
  ExpectMismatch(statuses[0], " called gather #0 (float32, 10 elements per rank, root 0)",
                 "rank 2 called gather #0 (float32, 10 elements per rank, root 1)");
}

// Rank 1 waits for a root that never comes; what ends its wait is the call of rank 0.
TEST_P(TcpWithSeveralTakersTest, ATakerThatWaitsHearsOfAnotherCall) {
  const int size = this->size();
  Countdown failed(2);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(rank));
    if (rank > 1) {
      failed.Wait();
      return absl::OkStatus();
    }
    const absl::Status status = Broadcast(*backend, 0, /*root=*/2, rank == 0 ? 5 : 7);
    failed.Step();
    return status;
  });
  for (int rank = 0; rank < 2; ++rank) {
    ExpectMismatch(statuses[rank], "rank 0 called broadcast #0 (uint8, 5 elements, root 2)",
                   "rank 1 called broadcast #0 (uint8, 7 elements, root 2)");
  }
}

}  // namespace
}  // namespace syncline::run_ahead
