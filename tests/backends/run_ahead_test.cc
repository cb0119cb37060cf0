// Ranks that go on as soon as they have given their data: what they may overwrite, and when they
// hear that others have called something else. Backend tcp is hierarchical with a node for each
// rank.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/common/comparison.h"
#include "backends/shm/shm_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/error_origin.h"
#include "syncline/file_store.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/support/operations.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace syncline::shm {
namespace {

using backends::Comparison;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(300);

// Backend shm takes the comparison; others, what SYNCLINE_DEBUG says.
absl::StatusOr<std::shared_ptr<Backend>> Join(const std::string& backend,
                                              std::shared_ptr<Store> store, int rank, int size,
                                              Comparison comparison) {
  BackendConfig config;
  config.store = std::move(store);
  config.rank = rank;
  config.size = size;
  config.local_address = "127.0.0.1";
  config.deadline = Deadline(kTimeout);
  return backend == "shm" ? MakeShm(config, comparison) : BackendRegistry::Make(backend, config);
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

// The backend, of tcp with several connections between two ranks, and the number of ranks.
using Case = std::tuple<std::string, int>;

class RunAheadTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) == "tcp_streams") setenv("SYNCLINE_TCP_STREAMS", "3", 1);
  }
  void TearDown() override { unsetenv("SYNCLINE_TCP_STREAMS"); }

  bool is_shm() const { return backend() == "shm"; }
  // As the contract of Backend says.
  uint64_t ahead() const { return is_shm() && size() > 2 ? 128 : 32; }
  std::string backend() const { return std::get<0>(GetParam()).substr(0, 3); }
  int size() const { return std::get<1>(GetParam()); }
  absl::StatusOr<std::shared_ptr<Backend>> Join(int rank,
                                                Comparison comparison = Comparison::kAsTheyGo,
                                                std::shared_ptr<Store> store = nullptr) const {
    if (store == nullptr) store = store_;
    return syncline::shm::Join(backend(), std::move(store), rank, size(), comparison);
  }

  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};
class ShmRunAheadTest : public RunAheadTest {};
// On tcp a rank also hears of those whose data it does not take, and bytes bound what it gives.
class TcpRunAheadTest : public RunAheadTest {};
class TcpWithTwoRanksTest : public RunAheadTest {};
class TcpWithThreeRanksTest : public RunAheadTest {};
class TcpWithSeveralTakersTest : public RunAheadTest {};
class SeveralTakersTest : public RunAheadTest {};
class ShmWithSeveralTakersTest : public RunAheadTest {};

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  return absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Sizes, RunAheadTest,
                         testing::Combine(testing::Values("shm", "tcp"), testing::Values(2, 3, 5)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Streams, RunAheadTest, testing::Values(Case("tcp_streams", 3)), NameOf);
INSTANTIATE_TEST_SUITE_P(Sizes, TcpRunAheadTest,
                         testing::Values(Case("tcp", 2), Case("tcp", 3), Case("tcp", 5),
                                         Case("tcp_streams", 3)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Sizes, TcpWithTwoRanksTest, testing::Values(Case("tcp", 2)), NameOf);
INSTANTIATE_TEST_SUITE_P(Sizes, TcpWithThreeRanksTest,
                         testing::Values(Case("tcp", 3), Case("tcp_streams", 3)), NameOf);
INSTANTIATE_TEST_SUITE_P(Sizes, TcpWithSeveralTakersTest,
                         testing::Values(Case("tcp", 3), Case("tcp", 5), Case("tcp_streams", 3)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Sizes, SeveralTakersTest,
                         testing::Values(Case("shm", 3), Case("shm", 5), Case("tcp", 3),
                                         Case("tcp", 5), Case("tcp_streams", 3)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Sizes, ShmWithSeveralTakersTest,
                         testing::Values(Case("shm", 3), Case("shm", 5)), NameOf);
INSTANTIATE_TEST_SUITE_P(Sizes, ShmRunAheadTest,
                         testing::Combine(testing::Values("shm"), testing::Values(2, 3, 5)),
                         NameOf);

// The roots and sizes change all the time, so that each rank gives and takes, and uses all of its
// buffers again and again, while others still read them.
TEST_P(RunAheadTest, WhatIsTakenIsRightHoweverFarTheGiverIs) {
  constexpr OpKind kKinds[] = {OpKind::kBroadcast, OpKind::kReduce,    OpKind::kGather,
                               OpKind::kScatter,   OpKind::kAllReduce, OpKind::kAllToAll};
  constexpr int64_t kCounts[] = {0, 1, 5, 16, 100, 1000, 5000, 20000};
  const int size = this->size();
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(rank));
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

TEST_P(RunAheadTest, TwoRootsHearOfEachOtherAtTheNextBarrier) {
  const int size = this->size();
  Countdown given(size);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(rank));
    const absl::Status gave = rank < 2 ? Broadcast(*backend, 0, rank, 5) : absl::OkStatus();
    if (is_shm()) {  // On tcp it may have heard of it already.
      EXPECT_EQ(gave, absl::OkStatus());
    }
    given.StepAndWait();
    if (!gave.ok()) return gave;
    return rank < 2 ? Barrier(*backend, 1) : Broadcast(*backend, 0, rank % 2, 5);
  });
  for (int rank = 0; rank < 2; ++rank) {
    ExpectMismatch(statuses[rank], " called broadcast #0 (uint8, 5 elements, root 0)",
                   " called broadcast #0 (uint8, 5 elements, root 1)");
  }
}

TEST_P(RunAheadTest, TwoRootsThatOnlyGiveHearOfEachOtherInTheEnd) {
  const int size = this->size();
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(rank));
    return FirstFailure(0, ahead(), [&](uint64_t sequence) {
      return Broadcast(*backend, sequence, /*root=*/rank, 5);
    });
  });
  for (const absl::Status& status : statuses) {
    ExpectMismatch(status, " called broadcast #0 (uint8, 5 elements, root ", ": all ranks must");
  }
}

// Each rank gives in its turn, so of two ranks neither compares all calls itself. The slots have
// come round several times when two ranks give in the same call.
TEST_P(RunAheadTest, TwoRootsHearOfItWhateverTheyHaveGivenBefore) {
  const int size = this->size();
  for (const uint64_t before : {ahead() - 1, ahead(), 2 * ahead() + 5, 3 * ahead() + 70}) {
    const auto store = std::make_shared<HashStore>();
    Countdown given(size);
    const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(rank, Comparison::kAsTheyGo, store));
      const absl::Status status = FirstFailure(0, before - 1, [&](uint64_t sequence) {
        return Broadcast(*backend, sequence, static_cast<int>(sequence / 3 % size), 5);
      });
      EXPECT_TRUE(status.ok()) << status;
      given.StepAndWait();
      return FirstFailure(before, before + ahead(), [&](uint64_t sequence) {
        return Broadcast(*backend, sequence, sequence == before ? rank : 0, 5);
      });
    });
    const std::string call = absl::StrCat(" called broadcast #", before, " (uint8, 5 elements, ");
    for (const absl::Status& status : statuses) {
      ExpectMismatch(status, call, ": all ranks must");
    }
  }
}

TEST_P(RunAheadTest, AGiverThatIs30CallsAheadHearsOfAMismatch) {
  const int size = this->size();
  Countdown given(2);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(rank));
    // The last rank takes something else in the first call.
    const auto call = [&](uint64_t sequence) {
      return Broadcast(*backend, sequence, 0, sequence == 0 && rank == size - 1 ? 7 : 5);
    };
    if (rank == 0) {
      SYNCLINE_RETURN_IF_ERROR(FirstFailure(0, 29, call));
      given.StepAndWait();
      return FirstFailure(30, 30 + ahead(), call);
    }
    if (rank != size - 1) return FirstFailure(0, 30 + ahead(), call);
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

TEST_P(RunAheadTest, AGiverIsSoManyCallsAheadOfARankThatDoesNotComeAndNoMore) {
  const int size = this->size();
  Countdown failed(size - 1);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(rank));
    if (rank == size - 1) {
      failed.Wait();
      // On tcp it would hear that a barrier is another call than that of rank 0.
      return is_shm() ? Barrier(*backend, 0) : Broadcast(*backend, 0, 0, 5);
    }
    const auto call = [&](uint64_t sequence) {
      return Broadcast(*backend, sequence, 0, 5, sequence < ahead() ? kTimeout : kShort);
    };
    if (rank == 0) {
      EXPECT_EQ(FirstFailure(0, ahead() - 1, call), absl::OkStatus());
    }
    const absl::Status status = FirstFailure(rank == 0 ? ahead() : 0, ahead(), call);
    failed.Step();
    return status;
  });
  for (int rank = 0; rank < size; ++rank) {
    const absl::Status& status = statuses[rank];
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    // On tcp the rank that is late gets what one of the others has reported.
    if (!is_shm() && rank == size - 1) continue;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("rank ", size - 1, " (")));
    EXPECT_THAT(RanksOf(status), ElementsAre(size - 1));
    if (!is_shm()) continue;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("it is in no operation of this group and has been in none"));
  }
  if (size == 2 && is_shm()) {
    EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("it has not taken broadcast #0"));
  }
}

TEST_P(RunAheadTest, WhatARankHasGivenIsTakenAfterItHasLeft) {
  const int size = this->size();
  Countdown gone(size);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank));
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

TEST_P(RunAheadTest, ARankThatLeavesComparesWhatItHasGiven) {
  const int size = this->size();
  Countdown given(2), gone(2);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank));
    if (rank > 1) return absl::OkStatus();
    const absl::Status gave = Broadcast(*backend, 0, rank, 5);
    if (is_shm()) {  // On tcp it may have heard of it already.
      EXPECT_EQ(gave, absl::OkStatus());
    }
    given.StepAndWait();
    if (rank == 0) backend.reset();
    gone.StepAndWait();
    if (rank == 0 || !gave.ok()) return gave;
    return FirstFailure(1, is_shm() ? 1 : ahead(),
                        [&](uint64_t sequence) { return Broadcast(*backend, sequence, rank, 5); });
  });
  ExpectMismatch(statuses[1], "rank 0 called broadcast #0 (uint8, 5 elements, root 0)",
                 "rank 1 called broadcast #0 (uint8, 5 elements, root 1)");
}

// The last rank is the root, which comes once all others have given and left.
TEST_P(RunAheadTest, WhatRanksHaveGivenIsTakenByARootThatComesAfterTheyHaveLeft) {
  const int size = this->size();
  for (const OpKind kind : {OpKind::kGather, OpKind::kReduce}) {
    const auto store = std::make_shared<HashStore>();
    Countdown gone(size - 1);
    const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank, Comparison::kAsTheyGo, store));
      Spec spec{kind};
      spec.count = 100;
      spec.root = size - 1;
      if (rank == size - 1) gone.Wait();
      const absl::Status status = FirstFailure(0, 7, [&](uint64_t sequence) -> absl::Status {
        const Collective operation = Build(spec, rank, size);
        SYNCLINE_RETURN_IF_ERROR(
            RunAndWait(*backend, operation, {sequence, Deadline(kTimeout)}).status());
        return CheckDone(spec, operation, rank, size);
      });
      backend.reset();
      if (rank < size - 1) gone.Step();
      return status;
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  }
}

// However much that is, all of it has to be in the kernels of those that have not come.
TEST_P(RunAheadTest, NothingIsLostOfWhatALeavingRankHasGivenToOneThatComesLater) {
  const int size = this->size();
  for (const int64_t count : {1 << 10, 8 << 10, 16 << 10}) {
    const auto store = std::make_shared<HashStore>();
    Countdown gone(1);
    std::atomic<uint64_t> given{0};
    const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank, Comparison::kAsTheyGo, store));
      const Tensor tensor = Tensor::Zeros(DType::kUInt8, {count});
      const auto call = [&](uint64_t sequence, absl::Duration timeout) {
        if (rank == 0) std::memset(tensor.data(), static_cast<int>(sequence + 1), count);
        return RunAndWait(*backend, Collective::Broadcast(tensor, 0), {sequence, Deadline(timeout)})
            .status();
      };
      if (rank == 0) {
        // As many as go without anyone who takes them: at least two.
        const uint64_t calls = is_shm() ? 4 : (32 << 10) / count;
        SYNCLINE_RETURN_IF_ERROR(FirstFailure(0, calls - 1, [&](uint64_t sequence) {
          ++given;
          return call(sequence, kTimeout);
        }));
        backend.reset();
        gone.Step();
        return absl::OkStatus();
      }
      gone.Wait();
      return FirstFailure(0, given - 1, [&](uint64_t sequence) -> absl::Status {
        SYNCLINE_RETURN_IF_ERROR(call(sequence, kTimeout));
        const std::string want(count, static_cast<char>(sequence + 1));
        const bool is_right = std::memcmp(tensor.data(), want.data(), count) == 0;
        return is_right ? absl::OkStatus() : absl::DataLossError(absl::StrCat(sequence));
      });
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << count << ": " << status;
  }
}

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
                     [&](uint64_t sequence) { return Broadcast(*backend, sequence, 0, 16 << 10); }),
        absl::OkStatus());
    const absl::Status status = Broadcast(*backend, 2, 0, 16 << 10, kShort);
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

// The others have taken all, and could not compare it with the last ranks, which do not come.
TEST_P(ShmWithSeveralTakersTest, AllRanksThatDoNotComeAreNamedAndNoOthers) {
  const int size = this->size();
  for (const int absent : {1, 2}) {
    const auto store = std::make_shared<HashStore>();
    Countdown failed(1);
    const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank, Comparison::kAsTheyGo, store));
      const auto call = [&](uint64_t sequence) {
        return Broadcast(*backend, sequence, 0, 5, sequence < ahead() ? kTimeout : kShort);
      };
      absl::Status status;
      if (rank < size - absent) status = FirstFailure(0, rank == 0 ? ahead() : ahead() - 1, call);
      if (rank == 0) failed.Step();
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

// A large call in which all meet does not count as given: the next small one does not wait.
TEST_P(RunAheadTest, AGiverGoesAheadOfALargeCallToo) {
  const int size = this->size();
  Countdown gone(1);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank));
    const Spec large{OpKind::kAllReduce, DType::kFloat32, 1 << 20};
    const Collective all_reduce = Build(large, rank, size);
    SYNCLINE_RETURN_IF_ERROR(RunAndWait(*backend, all_reduce, {0, Deadline(kTimeout)}).status());
    SYNCLINE_RETURN_IF_ERROR(CheckDone(large, all_reduce, rank, size));
    if (rank > 0) gone.Wait();
    const Spec small{OpKind::kBroadcast, DType::kFloat32, 100};
    const Collective broadcast = Build(small, rank, size);
    const absl::Status status = RunAndWait(*backend, broadcast, {1, Deadline(kTimeout)}).status();
    backend.reset();
    if (rank == 0) gone.Step();
    SYNCLINE_RETURN_IF_ERROR(status);
    return CheckDone(small, broadcast, rank, size);
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

// Rank 2 does not come. It keeps rank 1 from nothing that rank 0 has room to give it.
TEST_P(TcpWithSeveralTakersTest, ARankThatDoesNotComeKeepsNothingFromTheOthers) {
  const int size = this->size();
  Countdown failed(1);
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank));
    const auto call = [&](uint64_t sequence) {
      return Broadcast(*backend, sequence, 0, 16 << 10, rank == 0 ? kShort : kTimeout);
    };
    if (rank == 2) {
      failed.Wait();
      return absl::OkStatus();
    }
    const absl::Status status = FirstFailure(0, rank == 0 ? 5 : 2, call);
    if (rank == 0) failed.Step();
    failed.Wait();
    return status;
  });
  EXPECT_EQ(KindOf(statuses[0]), ErrorKind::kTimeout) << statuses[0];
  EXPECT_THAT(RanksOf(statuses[0]), ElementsAre(2)) << statuses[0];
  for (int rank = 1; rank < size; ++rank) EXPECT_EQ(statuses[rank], absl::OkStatus());
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

// Both threads may have records to send that nobody has heard of.
TEST_P(RunAheadTest, SeveralThreadsMayMakeARankLeaveAtOnce) {
  const int size = this->size();
  for (int round = 0; round < 5; ++round) {
    const auto store = std::make_shared<HashStore>();
    const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join(rank, Comparison::kAsTheyGo, store));
      for (uint64_t sequence = 0; sequence < 7; ++sequence) {
        SYNCLINE_RETURN_IF_ERROR(Broadcast(*backend, sequence, 0, 5));
      }
      std::vector<std::thread> threads;
      for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] { backend->Abort(BackendError("it leaves")); });
      }
      for (std::thread& thread : threads) thread.join();
      return absl::OkStatus();
    });
    for (const absl::Status& status : statuses) EXPECT_EQ(status, absl::OkStatus());
  }
}

// What a rank that does not wait shows of its call is enough for those that do.
TEST_P(RunAheadTest, AGiverAndARankThatMeetsQuoteEachOther) {
  const int size = this->size();
  const auto statuses = RunRanks(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(rank));
    if (rank == 0) {
      return FirstFailure(0, ahead(),
                          [&](uint64_t sequence) { return Broadcast(*backend, sequence, 0, 5); });
    }
    std::vector<Tensor> outputs;
    for (int r = 0; r < size; ++r) outputs.push_back(Tensor::Zeros(DType::kFloat32, {r + 1}));
    return RunAndWait(*backend,
                      Collective::AllGather(outputs, Tensor::Zeros(DType::kFloat32, {rank + 1})),
                      {0, Deadline(kTimeout)})
        .status();
  });
  for (const absl::Status& status : statuses) {
    ExpectMismatch(status, "rank 0 called broadcast #0 (uint8, 5 elements, root 0)",
                   "called all_gather #0 (float32");
  }
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("[1, 2"));
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

// Rank 2 calls something else, of which rank 1 may hear in the call in which it takes the root's
// elements: then its tensor is as it was.
TEST_P(SeveralTakersTest, ACallThatFailsLeavesTheTensor) {
  const int size = this->size();
  for (int round = 0; round < 5; ++round) {
    const auto store = std::make_shared<HashStore>();
    RunRanks(size, [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(rank, Comparison::kAsTheyGo, store));
      const Tensor tensor = Tensor::Zeros(DType::kUInt8, {rank == 2 ? 7 : 5});
      auto* bytes = static_cast<uint8_t*>(tensor.data());
      bytes[0] = rank == 0 ? 9 : 4;
      const absl::Status status =
          RunAndWait(*backend, Collective::Broadcast(tensor, 0), {0, Deadline(kTimeout)}).status();
      if (rank > 0) {
        EXPECT_EQ(bytes[0], status.ok() ? 9 : 4) << rank << " " << status;
      }
      if (rank == 2) {
        EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
      }
      return status;
    });
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

// The environment is one for all threads, so rank 0 is a process of its own.
class DebugSettingTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Backends, DebugSettingTest, testing::Values("shm", "tcp"));

TEST_P(DebugSettingTest, RanksOfWhichOneAsksForDetailFormNoGroup) {
  const ScratchFolder folder;
  const std::string path = absl::StrCat(folder.path(), "/store");
  const auto join = [&](int rank) {
    return Join(GetParam(), *FileStore::Open(path), rank, 2, backends::DefaultComparison())
        .status();
  };
  const pid_t child = fork();
  if (child == 0) {
    setenv("SYNCLINE_DEBUG", "detail", 1);
    _exit(static_cast<int>(KindOf(join(0))));
  }
  ASSERT_GT(child, 0);
  ExpectMismatch(join(1), "SYNCLINE_DEBUG=detail", "rank 0 would, rank 1 would not");
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ErrorKind::kMismatch));
}

}  // namespace
}  // namespace syncline::shm
