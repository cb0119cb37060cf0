// The part of the suite that is about failures. See backend_conformance.h.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"
#include "tests/backends/backend_conformance.h"
#include "tests/backends/suite_ranks.h"
#include "tests/support/operations.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// What must happen "at once" may take this much longer on a busy machine.
constexpr absl::Duration kSlack = absl::Seconds(5);

std::string Rank(int rank) { return absl::StrCat("rank ", rank); }

std::string Message(const absl::Status& status) { return std::string(status.message()); }

void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

absl::Status Reduce(Backend& backend, const CallContext& context) {
  return RunAndWait(backend,
                    Collective::AllReduce(Numbers(DType::kFloat32, 1000, 0), ReduceOp::kSum),
                    context)
      .status();
}

// Operations that wait for the last rank.
std::vector<Spec> Awaiting(const BackendCase& backend, int size) {
  std::vector<Spec> specs = {{OpKind::kAllReduce}, {OpKind::kBarrier}};
  Spec recv = {OpKind::kRecv};
  recv.root = size - 1;
  specs.push_back(recv);
  if (size > 2) return specs;
  recv.root = kAnySource;
  if (backend.ServesTags()) specs.push_back(recv);
  if (backend.mismatches != BackendCase::Mismatches::kDetected) return specs;
  // Those who compare their calls wait for each other in every collective, whatever data they need,
  // except that a rank that only gives may go on for a while.
  for (OpKind kind : CollectiveKinds()) specs.push_back({kind});
  return specs;
}

}  // namespace

TEST_P(BackendConformance, ARankThatNeverJoinsIsNamed) {
  if (size() == 1) return;
  const auto store = SuiteRanks::NewStore();
  const auto statuses = SuiteRanks::Run(
      size() - 1, [&](int rank) { return Make(store, rank, absl::Seconds(2)).status(); });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(Message(status), HasSubstr(Rank(size() - 1)));
    EXPECT_THAT(RanksOf(status), testing::ElementsAre(size() - 1));
  }
}

TEST_P(BackendConformance, ARankThatDoesNotComeIsNamedAndLaterCallsFailAtOnce) {
  if (size() == 1) return;
  // Of several that wait, the first that gives up must not miss the others. Where one waits alone,
  // nobody must be in time.
  const absl::Duration timeout = absl::Milliseconds(size() > 2 ? 1000 : 100);
  for (const Spec& spec : Awaiting(Case(), size())) {
    SCOPED_TRACE(spec);
    SuiteCountdown calling(size() - 1), failed(size() - 1);
    Run([&](std::shared_ptr<Backend>& backend, int rank) {
      if (rank == size() - 1) return failed.Wait();
      calling.StepAndWait();
      const absl::Time start = absl::Now();
      // A rank that only gives may be this many calls ahead, and names the first of them then.
      uint64_t sequence = 7;
      absl::Status status;
      for (int ahead = 0; status.ok() && ahead <= (OnlyGives(spec, rank) ? 128 : 0); ++ahead) {
        sequence = 7 + ahead;
        status =
            RunAndWait(*backend, Build(spec, rank, size()), Within(timeout, sequence)).status();
      }
      EXPECT_LT(absl::Now() - start, timeout + kSlack);
      EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
      EXPECT_THAT(Message(status), HasSubstr(absl::StrCat(Name(spec.kind), " #7")));
      EXPECT_THAT(Message(status), HasSubstr(Rank(size() - 1)));
      EXPECT_THAT(RanksOf(status), AllOf(Contains(size() - 1), Not(Contains(rank)))) << status;
      const auto origin = OriginOf(status);
      ASSERT_TRUE(origin.has_value()) << status;
      // Its own, or that of the rank that noticed first.
      std::vector<ErrorOrigin::Operation> operations;
      for (int r = 0; r < size() - 1; ++r) {
        operations.push_back(Build(spec, r, size()).OperationAt(sequence, r));
      }
      ASSERT_THAT(origin->operations, testing::SizeIs(1)) << status;
      EXPECT_THAT(operations, Contains(origin->operations[0])) << status;

      const absl::Time again = absl::Now();
      EXPECT_EQ(Reduce(*backend, Within(kTimeout, sequence + 1)), status);
      EXPECT_EQ(RunAndWait(*backend, Collective::Send(Tensor::Zeros(DType::kInt8, {5}), 0),
                           Within(kTimeout))
                    .status(),
                status);
      EXPECT_LT(absl::Now() - again, kSlack);
      failed.Step();
    });
  }
}

TEST_P(BackendConformance, TheTimeoutOfOneRankIsWhatAllTell) {
  if (size() == 1) return;
  const absl::Duration timeout = absl::Milliseconds(300);
  const absl::Duration of_others = absl::Seconds(90);
  SuiteCountdown joined(size()), failed(size() - 1);
  Run([&](std::shared_ptr<Backend>& backend, int rank) {
    joined.StepAndWait();
    // The last rank comes when the others have failed. Only rank 0 has little time.
    const bool is_late = rank == size() - 1;
    if (is_late) failed.Wait();
    const absl::Time start = absl::Now();
    const absl::Status status = Reduce(*backend, Within(rank == 0 ? timeout : of_others, 7));
    EXPECT_LT(absl::Now() - start, timeout + kSlack);
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr(" after 300ms"), Not(HasSubstr(absl::FormatDuration(of_others)))));
    if (!is_late) failed.Step();
  });
}

TEST_P(BackendConformance, ARankThatIsDestroyedFailsTheOthersSoon) {
  if (size() == 1) return;
  // A call that fails at one rank also fails those under way at others.
  SuiteCountdown have_passed(size()), failed(size() - 1);
  Run([&](std::shared_ptr<Backend>& backend, int rank) {
    ExpectOk(RunAndWait(*backend, Collective::Barrier(), Within(kTimeout, 0)).status());
    have_passed.StepAndWait();
    if (rank == size() - 1) {
      backend.reset();
      return failed.Wait();
    }
    const absl::Time start = absl::Now();
    const absl::Status status = Reduce(*backend, Within(kTimeout, 1));
    EXPECT_LT(absl::Now() - start, 2 * kSlack);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(Message(status), HasSubstr(Rank(size() - 1)));
    EXPECT_THAT(RanksOf(status), AllOf(Contains(size() - 1), Not(Contains(rank)))) << status;
    EXPECT_EQ(RunAndWait(*backend, Collective::Barrier(), Within(kTimeout, 2)).status(), status);
    failed.Step();
  });
}

TEST_P(BackendConformance, ARankThatAbortsInACallFailsEveryRankWithItsCause) {
  SuiteCountdown calling(size());
  SuiteCountdown failed(size());
  Run([&](std::shared_ptr<Backend>& backend, int rank) {
    if (size() == 1) return backend->Abort(BackendError("the disk is full"));
    const bool aborts = rank == size() - 1;
    // Nobody sends: all wait.
    std::thread caller([&] {
      calling.Step();
      const absl::Status status =
          RunAndWait(*backend,
                     Collective::Recv(Tensor::Zeros(DType::kInt8, {5}), (rank + 1) % size()),
                     Within(kTimeout))
              .status();
      EXPECT_EQ(KindOf(status), ErrorKind::kBackend) << status;
      EXPECT_THAT(Message(status), HasSubstr("the disk is full"));
      if (!aborts) {
        EXPECT_THAT(Message(status), HasSubstr(Rank(size() - 1)));
      }
      failed.Step();
    });
    calling.Wait();
    const absl::Time start = absl::Now();
    if (aborts) backend->Abort(BackendError("the disk is full"));
    caller.join();
    EXPECT_LT(absl::Now() - start, 2 * kSlack);
    failed.Wait();
    EXPECT_THAT(Message(Reduce(*backend, Within(kTimeout))), HasSubstr("the disk is full"));
  });
}

TEST_P(BackendConformance, ARankThatHasFinishedMayGoWhileOthersStillTalk) {
  if (size() < 3) return;
  constexpr int64_t kElements = 1 << 20;  // 4 MiB
  SuiteCountdown gone(1);
  Run([&](std::shared_ptr<Backend>& backend, int rank) {
    ExpectOk(RunAndWait(*backend, Collective::Barrier(), Within(kTimeout, 0)).status());
    if (rank == size() - 1) {
      backend->Abort(BackendError("the group is closed"));
      backend.reset();
      return gone.Step();
    }
    if (rank > 1) return;
    for (int i = 0; i < 10; ++i) {
      const Tensor tensor = Bytes(DType::kInt32, kElements, rank == 0 ? i : -1);
      if (i == 5) {
        gone.Wait();
      }
      ExpectOk(
          rank == 0
              ? RunAndWait(*backend, Collective::Send(tensor, 1), Within(kTimeout, i)).status()
              : RunAndWait(*backend, Collective::Recv(tensor, 0), Within(kTimeout, i)).status());
      if (rank == 1) {
        EXPECT_TRUE(SameBytes(tensor, Bytes(DType::kInt32, kElements, i)));
      }
    }
  });
}

TEST_P(BackendConformance, AReceiveFromAnyRankFailsSoonOnceAllOthersHaveGone) {
  if (size() == 1 || !Case().ServesTags()) return;
  Run([](std::shared_ptr<Backend>& backend, int rank) {
    ExpectOk(RunAndWait(*backend, Collective::Barrier(), Within(kTimeout, 0)).status());
    if (rank > 0) return;  // Destroys the backend.
    const absl::Time start = absl::Now();
    const auto source = RunAndWait(
        *backend, Collective::Recv(Tensor::Zeros(DType::kInt8, {5}), kAnySource), Within(kTimeout));
    EXPECT_LT(absl::Now() - start, 2 * kSlack);
    EXPECT_FALSE(source.ok());
    EXPECT_NE(KindOf(source.status()), ErrorKind::kTimeout) << source.status();
    EXPECT_THAT(Message(source.status()), HasSubstr(Rank(1)));
  });
}

TEST_P(BackendConformance, AbortIsIdempotentAndTheFirstCauseStays) {
  Run([](std::shared_ptr<Backend>& backend, int) {
    backend->Abort(BackendError("first"));
    backend->Abort(BackendError("second"));
    const absl::Status status = Reduce(*backend, Within(kTimeout));
    EXPECT_THAT(Message(status), HasSubstr("first"));
  });
}

}  // namespace syncline
