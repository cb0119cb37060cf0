// Backend shm: ranks that go on as soon as they have given their data. See run_ahead_test.cc.
#include <sched.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
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

class ShmRunAheadTest : public RunAheadTest {};
class ShmWithSeveralTakersTest : public RunAheadTest {};

INSTANTIATE_TEST_SUITE_P(Sizes, ShmRunAheadTest,
                         testing::Combine(testing::Values("shm"), testing::Values(2, 3, 5)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Sizes, ShmWithSeveralTakersTest,
                         testing::Values(Case("shm", 3), Case("shm", 5)), NameOf);

// The others have taken all, and could not compare it with the last ranks, which do not come.
TEST_P(ShmWithSeveralTakersTest, AllRanksThatDoNotComeAreNamedAndNoOthers) {
  const int size = this->size();
  for (const int absent : {1, 2}) {
    const auto store = std::make_shared<HashStore>();
    Countdown taken(size - absent), failed(1);
    const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank, Comparison::kAsTheyGo, store));
      const auto call = [&](uint64_t sequence) {
        return Broadcast(*backend, sequence, 0, 5, sequence < ahead() ? kTimeout : kShort);
      };
      absl::Status status;
      if (rank < size - absent) {
        status = FirstFailure(0, ahead() - 1, call);
        taken.StepAndWait();
      }
      if (rank == 0) {
        if (status.ok()) status = call(ahead());
        failed.Step();
      }
      failed.Wait();
      return status;
    });
    EXPECT_EQ(KindOf(statuses[0]), ErrorKind::kTimeout) << statuses[0];
    const std::vector<int> late =
        absent == 1 ? std::vector<int>{size - 1} : std::vector<int>{size - 2, size - 1};
    EXPECT_EQ(RanksOf(statuses[0]), late) << statuses[0];
    EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("it has not taken broadcast #0"));
    for (int rank = 1; rank < size; ++rank) EXPECT_EQ(statuses[rank], absl::OkStatus());
  }
}

// The giver has all that it needs of the last rank, for which rank 1 waits.
TEST_P(ShmWithSeveralTakersTest, ARankIsNamedForWhichAnotherWaits) {
  const int size = this->size();
  const int last = size - 1;
  constexpr uint64_t kGather = 20;
  Countdown taken(size - 2), failed(1);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank));
    const auto call = [&](uint64_t sequence) {
      const Deadline deadline(sequence < ahead() ? kTimeout : kShort);
      Spec spec{sequence == kGather ? OpKind::kGather : OpKind::kBroadcast};
      if (sequence == kGather) spec.root = 1;
      return RunAndWait(*backend, Build(spec, rank, size), {sequence, deadline}).status();
    };
    absl::Status status;
    // It takes after the others have done so, and settles what they have not. Rank 1 is in the
    // gather by then: if it came later, it would find there what it has to settle.
    if (rank == last) {
      taken.Wait();
      absl::SleepFor(absl::Milliseconds(200));
    }
    status = FirstFailure(0, kGather - 1, call);
    if (rank > 0 && rank < last) taken.Step();
    if (rank < last && status.ok()) status = FirstFailure(kGather, ahead(), call);
    if (rank == 0) failed.Step();
    failed.Wait();
    return status;
  });
  for (int rank = 0; rank < last; ++rank) {
    EXPECT_EQ(KindOf(statuses[rank]), ErrorKind::kTimeout) << statuses[rank];
    EXPECT_THAT(RanksOf(statuses[rank]), ElementsAre(last)) << statuses[rank];
  }
}

// Rank 1 waits for a message of rank 0; the others for rank 1 alone, or for all.
TEST_P(ShmWithSeveralTakersTest, ALateRankThatWaitsForAMessageIsNamedWithItsSender) {
  const int size = this->size();
  for (const OpKind kind : {OpKind::kBroadcast, OpKind::kBarrier}) {
    SCOPED_TRACE(Name(kind));
    const auto store = std::make_shared<HashStore>();
    Countdown receives(1), failed(size - 2);
    const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank, Comparison::kAsTheyGo, store));
      absl::Status status;
      if (rank == 1) {
        const Tensor tensor = Tensor::Zeros(DType::kFloat32, {5});
        receives.Step();
        status =
            RunAndWait(*backend, Collective::Recv(tensor, 0), {0, Deadline(kTimeout)}).status();
      }
      if (rank > 1) {
        receives.Wait();
        Spec spec{kind};
        if (HasRoot(kind)) spec.root = 1;
        status = RunAndWait(*backend, Build(spec, rank, size), {0, Deadline(kShort)}).status();
        failed.Step();
      }
      failed.Wait();
      return status;
    });
    for (int rank = 1; rank < size; ++rank) {
      EXPECT_EQ(KindOf(statuses[rank]), ErrorKind::kTimeout) << statuses[rank];
      EXPECT_THAT(RanksOf(statuses[rank]), ElementsAre(0, 1)) << statuses[rank];
      EXPECT_THAT(std::string(statuses[rank].message()), HasSubstr("it is in recv #0 from rank 0"));
    }
  }
}

// Rank 1 waits for all in an earlier collective; the others for it alone, or for all.
TEST_P(ShmWithSeveralTakersTest, ARankThatWaitsForOthersIsNotNamedButThose) {
  const int size = this->size();
  for (const OpKind kind : {OpKind::kBroadcast, OpKind::kBarrier}) {
    for (int first_absent = 2; first_absent < size; ++first_absent) {
      SCOPED_TRACE(absl::StrCat(Name(kind), " without those from ", first_absent, " on"));
      const auto store = std::make_shared<HashStore>();
      Countdown failed(1);
      const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank, Comparison::kAsTheyGo, store));
        const auto call = [&](OpKind called, uint64_t sequence, absl::Duration timeout) {
          Spec spec{called};
          if (HasRoot(called)) spec.root = 1;
          return RunAndWait(*backend, Build(spec, rank, size), {sequence, Deadline(timeout)})
              .status();
        };
        absl::Status status;
        if (rank < first_absent) {
          status = call(OpKind::kGather, 0, kTimeout);
          if (status.ok()) status = call(kind, 1, kShort);
          if (rank == 0) failed.Step();
        }
        failed.Wait();
        return status;
      });
      std::vector<int> absent;
      for (int rank = first_absent; rank < size; ++rank) absent.push_back(rank);
      for (int rank = 0; rank < first_absent; ++rank) {
        EXPECT_EQ(KindOf(statuses[rank]), ErrorKind::kTimeout) << statuses[rank];
        EXPECT_EQ(RanksOf(statuses[rank]), absent) << statuses[rank];
      }
    }
  }
}

// Whoever is so far ahead on a core that it shares rests, and the other goes on meanwhile. Then
// neither may wait for what the other has not told.
TEST_P(ShmRunAheadTest, RanksOnOneCoreThatTakeTurnsInGivingDoNotWaitForEachOther) {
  const int size = this->size(), core = sched_getcpu();
  for (int round = 0; round < 20; ++round) {
    const auto store = std::make_shared<HashStore>();
    Countdown given(size);
    const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(core, &one);
      EXPECT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
      SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(rank, Comparison::kAsTheyGo, store));
      if (rank > 0) given.StepAndWait();
      return FirstFailure(0, 5 * ahead(), [&](uint64_t sequence) {
        if (rank == 0 && sequence == ahead()) given.StepAndWait();
        const int root = static_cast<int>(sequence / ahead() % size);
        return Broadcast(*backend, sequence, root, 5, absl::Seconds(10));
      });
    });
    for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
  }
}

TEST_P(ShmRunAheadTest, WhoComparesAtOnceWaitsForAllRanks) {
  const int size = this->size();
  Countdown failed(size - 1);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(rank, Comparison::kAtOnce));
    SYNCLINE_RETURN_IF_ERROR(Broadcast(*backend, 0, 0, 100));
    if (rank == size - 1) {
      failed.Wait();
      return Barrier(*backend, 1);
    }
    const absl::Status status = Broadcast(*backend, 1, 0, 100, kShort);
    failed.Step();
    return status;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("broadcast #1"));
    EXPECT_THAT(RanksOf(status), ElementsAre(size - 1));
  }
}

TEST_P(ShmRunAheadTest, RanksThatCompareAtDifferentTimesFormNoGroup) {
  const int size = this->size();
  const auto statuses = RunRanks(size, [&](int rank) {
    return Join(rank, rank == 0 ? Comparison::kAtOnce : Comparison::kAsTheyGo).status();
  });
  for (const absl::Status& status : statuses) {
    ExpectMismatch(status, "SYNCLINE_DEBUG=detail", "rank 0 would, rank");
  }
}

}  // namespace
}  // namespace syncline::run_ahead
