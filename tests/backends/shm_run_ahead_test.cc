// Ranks of one host that go on as soon as they have given their data: what they may overwrite, and
// when they hear that others have called something else.
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/shm/shm_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/support/operations.h"
#include "tests/support/ranks.h"

namespace syncline::shm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(300);
constexpr int kAhead = 32;  // As the contract of Backend says.

absl::StatusOr<std::shared_ptr<Backend>> Join(std::shared_ptr<Store> store, int rank, int size,
                                              Comparison comparison = Comparison::kAsTheyGo) {
  BackendConfig config;
  config.store = std::move(store);
  config.rank = rank;
  config.size = size;
  config.local_address = "127.0.0.1";
  config.deadline = Deadline(kTimeout);
  return MakeShm(config, comparison);
}

absl::Status Broadcast(Backend& backend, uint64_t sequence, int root, int64_t count,
                       absl::Duration timeout = kTimeout) {
  return RunAndWait(backend, Collective::Broadcast(Tensor::Zeros(DType::kUInt8, {count}), root),
                    {sequence, Deadline(timeout)})
      .status();
}

absl::Status Barrier(Backend& backend, uint64_t sequence) {
  return RunAndWait(backend, Collective::Barrier(), {sequence, Deadline(kTimeout)}).status();
}

// The status of the first of the calls from `first` to `last` that fails.
template <typename Call>  // absl::Status(uint64_t sequence)
absl::Status FirstFailure(uint64_t first, uint64_t last, const Call& call) {
  for (uint64_t sequence = first; sequence <= last; ++sequence) {
    SYNCLINE_RETURN_IF_ERROR(call(sequence));
  }
  return absl::OkStatus();
}

void ExpectMismatch(const absl::Status& status, const std::string& a, const std::string& b) {
  EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(a), HasSubstr(b)));
}

class ShmRunAheadTest : public testing::TestWithParam<int> {
 protected:
  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

INSTANTIATE_TEST_SUITE_P(Sizes, ShmRunAheadTest, testing::Values(2, 3, 5));

// The roots and sizes change all the time, so that each rank gives and takes, and uses all of its
// buffers again and again, while others still read them.
TEST_P(ShmRunAheadTest, WhatIsTakenIsRightHoweverFarTheGiverIs) {
  constexpr OpKind kKinds[] = {OpKind::kBroadcast, OpKind::kReduce,    OpKind::kGather,
                               OpKind::kScatter,   OpKind::kAllReduce, OpKind::kAllToAll};
  constexpr int64_t kCounts[] = {0, 1, 5, 16, 100, 1000, 5000, 20000};
  const int size = GetParam();
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store_, rank, size));
    std::mt19937 random(size);  // The same on all ranks.
    for (uint64_t sequence = 0; sequence < 4000; ++sequence) {
      // Runs of one kind and one root, which let a rank get ahead.
      static thread_local Spec spec{OpKind::kBroadcast};
      if (sequence % 64 == 0) {
        spec = Spec{kKinds[random() % std::size(kKinds)]};
        spec.root = HasRoot(spec.kind) ? static_cast<int>(random() % size) : 0;
      }
      spec.count = kCounts[random() % std::size(kCounts)];
      const Collective operation = Build(spec, rank, size);
      SYNCLINE_RETURN_IF_ERROR(
          RunAndWait(*backend, operation, {sequence, Deadline(kTimeout)}).status());
      SYNCLINE_RETURN_IF_ERROR(
          Annotate(CheckDone(spec, operation, rank, size), absl::StrCat(sequence)));
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_P(ShmRunAheadTest, TwoRootsHearOfEachOtherAtTheNextBarrier) {
  const int size = GetParam();
  Countdown given(size);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store_, rank, size));
    if (rank < 2) {
      EXPECT_EQ(Broadcast(*backend, 0, rank, 5), absl::OkStatus());
    }
    given.StepAndWait();
    return rank < 2 ? Barrier(*backend, 1) : Broadcast(*backend, 0, rank % 2, 5);
  });
  for (int rank = 0; rank < 2; ++rank) {
    ExpectMismatch(statuses[rank], " called broadcast #0 (uint8, 5 elements, root 0)",
                   " called broadcast #0 (uint8, 5 elements, root 1)");
  }
}

TEST_P(ShmRunAheadTest, TwoRootsThatOnlyGiveHearOfEachOtherAfter32Calls) {
  const int size = GetParam();
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store_, rank, size));
    return FirstFailure(0, kAhead, [&](uint64_t sequence) {
      return Broadcast(*backend, sequence, /*root=*/rank, 5);
    });
  });
  for (const absl::Status& status : statuses) {
    ExpectMismatch(status, " called broadcast #0 (uint8, 5 elements, root ", ": all ranks must");
  }
}

TEST_P(ShmRunAheadTest, AGiverThatIs30CallsAheadHearsOfAMismatch) {
  const int size = GetParam();
  Countdown given(2);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store_, rank, size));
    // The last rank takes something else in the first call.
    const auto call = [&](uint64_t sequence) {
      return Broadcast(*backend, sequence, 0, sequence == 0 && rank == size - 1 ? 7 : 5);
    };
    if (rank == 0) {
      SYNCLINE_RETURN_IF_ERROR(FirstFailure(0, 29, call));
      given.StepAndWait();
      return FirstFailure(30, 30 + kAhead, call);
    }
    if (rank != size - 1) return FirstFailure(0, 30 + kAhead, call);
    given.StepAndWait();
    const absl::Status status = call(0);
    EXPECT_FALSE(status.ok());
    return status;
  });
  for (const absl::Status& status : statuses) {
    ExpectMismatch(
        status, " called broadcast #0 (uint8, 5 elements, root 0)",
        absl::StrCat("rank ", size - 1, " called broadcast #0 (uint8, 7 elements, root 0)"));
    EXPECT_THAT(RanksOf(status), testing::Contains(size - 1));
  }
}

TEST_P(ShmRunAheadTest, AGiverIsAtMost32CallsAheadOfARankThatDoesNotCome) {
  const int size = GetParam();
  Countdown failed(size - 1);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store_, rank, size));
    if (rank == size - 1) {
      failed.Wait();
      return Barrier(*backend, 0);
    }
    const auto call = [&](uint64_t sequence) {
      return Broadcast(*backend, sequence, 0, 5, sequence < kAhead ? kTimeout : kShort);
    };
    if (rank == 0) {
      EXPECT_EQ(FirstFailure(0, kAhead - 1, call), absl::OkStatus());
    }
    const absl::Status status = FirstFailure(rank == 0 ? kAhead : 0, kAhead, call);
    failed.Step();
    return status;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(absl::StrCat("rank ", size - 1, " (")),
                      HasSubstr("it is in no operation of this group and has been in none")));
    EXPECT_THAT(RanksOf(status), ElementsAre(size - 1));
  }
  if (size == 2) {
    EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("it has not taken broadcast #0"));
  }
}

TEST_P(ShmRunAheadTest, WhatARankHasGivenIsTakenAfterItHasLeft) {
  const int size = GetParam();
  Countdown gone(size);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(store_, rank, size));
    Spec spec{OpKind::kBroadcast};
    spec.count = 1000;
    if (rank > 0) gone.StepAndWait();
    for (uint64_t sequence = 0; sequence < 8; ++sequence) {
      const Collective operation = Build(spec, rank, size);
      SYNCLINE_RETURN_IF_ERROR(
          RunAndWait(*backend, operation, {sequence, Deadline(kTimeout)}).status());
      SYNCLINE_RETURN_IF_ERROR(CheckDone(spec, operation, rank, size));
    }
    backend.reset();
    if (rank == 0) gone.StepAndWait();
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_P(ShmRunAheadTest, ARankThatLeavesComparesWhatItHasGiven) {
  const int size = GetParam();
  Countdown given(2), gone(2);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(store_, rank, size));
    if (rank > 1) return absl::OkStatus();
    EXPECT_EQ(Broadcast(*backend, 0, rank, 5), absl::OkStatus());
    given.StepAndWait();
    if (rank == 0) backend.reset();
    gone.StepAndWait();
    return rank == 0 ? absl::OkStatus() : Broadcast(*backend, 1, rank, 5);
  });
  ExpectMismatch(statuses[1], "rank 0 called broadcast #0 (uint8, 5 elements, root 0)",
                 "rank 1 called broadcast #0 (uint8, 5 elements, root 1)");
}

TEST_P(ShmRunAheadTest, WhoComparesAtOnceWaitsForAllRanks) {
  const int size = GetParam();
  Countdown failed(size - 1);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store_, rank, size, Comparison::kAtOnce));
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
  const int size = GetParam();
  const auto statuses = RunRanks(size, [&](int rank) {
    return Join(store_, rank, size, rank == 0 ? Comparison::kAtOnce : Comparison::kAsTheyGo)
        .status();
  });
  for (const absl::Status& status : statuses) {
    ExpectMismatch(status, "SYNCLINE_DEBUG=detail", "rank 0 would, rank");
  }
}

}  // namespace
}  // namespace syncline::shm
