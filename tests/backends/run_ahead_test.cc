// Ranks that go on as soon as they have given their data: what they may overwrite, and when they
// hear that others have called something else. What holds for backend shm and for backend tcp,
// which is hierarchical with a node for each rank; shm_run_ahead_test.cc and tcp_run_ahead_test.cc
// have the rest.
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
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "backends/common/comparison.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/error_origin.h"
#include "syncline/file_store.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/backends/run_ahead_ranks.h"
#include "tests/support/operations.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace syncline::run_ahead {
namespace {

using backends::Comparison;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SeveralTakersTest : public RunAheadTest {};

INSTANTIATE_TEST_SUITE_P(Sizes, RunAheadTest,
                         testing::Combine(testing::Values("shm", "tcp"), testing::Values(2, 3, 5)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Streams, RunAheadTest, testing::Values(Case("tcp_streams", 3)), NameOf);
INSTANTIATE_TEST_SUITE_P(Sizes, SeveralTakersTest,
                         testing::Values(Case("shm", 3), Case("shm", 5), Case("tcp", 3),
                                         Case("tcp", 5), Case("tcp_streams", 3)),
                         NameOf);

// The roots and sizes change all the time, so that each rank gives and takes, and uses all of its
// buffers again and again, while others still read them.
TEST_P(RunAheadTest, WhatIsTakenIsRightHoweverFarTheGiverIs) {
  constexpr OpKind kKinds[] = {OpKind::kBroadcast, OpKind::kReduce,    OpKind::kGather,
                               OpKind::kScatter,   OpKind::kAllReduce, OpKind::kAllToAll,
                               OpKind::kBarrier,   OpKind::kAllGather, OpKind::kReduceScatter};
  constexpr int64_t kCounts[] = {0, 1, 5, 10, 16, 22, 23, 100, 1000, 5000, 20000};
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
  Countdown taken(size - 1), failed(size - 1);
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
    EXPECT_EQ(FirstFailure(0, ahead() - 1, call), absl::OkStatus());
    taken.StepAndWait();
    const absl::Status status = call(ahead());
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
  for (const int64_t count : {1 << 10, 8 << 10, 16 << 10, 64 << 10}) {
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
        const uint64_t calls = is_shm() ? 4 : (128 << 10) / count;
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

// The environment is one for all threads, so rank 0 is a process of its own.
class DebugSettingTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Backends, DebugSettingTest, testing::Values("shm", "tcp"));

TEST_P(DebugSettingTest, RanksOfWhichOneAsksForDetailFormNoGroup) {
  const ScratchFolder folder;
  const std::string path = absl::StrCat(folder.path(), "/store");
  const auto join = [&](int rank) {
    return JoinComparing(GetParam(), *FileStore::Open(path), rank, 2, backends::DefaultComparison())
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
}  // namespace syncline::run_ahead
