// The part of the suite that is about ranks that call different things. See backend_conformance.h.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::UnorderedElementsAre;
using Suite = BackendConformance;

// A call, and how messages quote it. Parts are those of two ranks.
struct Quoted {
  Spec spec;
  std::string text;
  uint64_t sequence = 5;
};

// What one rank calls while all others call something else.
struct Deviation {
  Quoted usual;
  std::vector<Quoted> deviant;
};

constexpr DType kF32 = DType::kFloat32, kF64 = DType::kFloat64, kI32 = DType::kInt32;
constexpr ReduceOp kSum = ReduceOp::kSum, kMax = ReduceOp::kMax;
constexpr BufferUse kApart = BufferUse::kApart;

std::vector<Deviation> ReducingDeviations() {
  using Op = OpKind;
  return {
      {{{Op::kAllReduce}, "all_reduce #5 (float32, 10 elements, sum)"},
       {{{Op::kAllReduce, kF64}, "all_reduce #5 (float64, 10 elements, sum)"},
        {{Op::kAllReduce, kI32}, "all_reduce #5 (int32, 10 elements, sum)"},
        {{Op::kAllReduce, kF32, 11}, "all_reduce #5 (float32, 11 elements, sum)"},
        {{Op::kAllReduce, kF32, 1 << 20}, "all_reduce #5 (float32, 1048576 elements, sum)"},
        {{Op::kAllReduce, kF32, 0}, "all_reduce #5 (float32, 0 elements, sum)"},
        {{Op::kAllReduce, kF32, 10, kMax}, "all_reduce #5 (float32, 10 elements, max)"},
        {{Op::kAllReduce, kF32, 10, ReduceOp::kPremulSum},
         "all_reduce #5 (float32, 10 elements, premul_sum)"},
        {{Op::kAllReduce}, "all_reduce #6 (float32, 10 elements, sum)", 6},
        {{Op::kBarrier}, "barrier #5"},
        {{Op::kBroadcast, kF32, 10, kSum, 1}, "broadcast #5 (float32, 10 elements, root 1)"},
        {{Op::kReduce}, "reduce #5 (float32, 10 elements, sum, root 0)"}}},
      {{{Op::kReduce, kF32, 10, kSum, 1}, "reduce #5 (float32, 10 elements, sum, root 1)"},
       {{{Op::kReduce, kF32, 10, kSum, 0}, "reduce #5 (float32, 10 elements, sum, root 0)"},
        {{Op::kReduce, kF32, 10, kMax, 1}, "reduce #5 (float32, 10 elements, max, root 1)"},
        {{Op::kReduce, kF64, 10, kSum, 1}, "reduce #5 (float64, 10 elements, sum, root 1)"},
        {{Op::kReduce, kF32, 9, kSum, 1}, "reduce #5 (float32, 9 elements, sum, root 1)"},
        {{Op::kAllReduce}, "all_reduce #5 (float32, 10 elements, sum)"}}},
      {{{Op::kReduceScatter}, "reduce_scatter #5 (float32, 10 elements per rank, sum)"},
       {{{Op::kReduceScatter, kF32, 10, kSum, 0, kApart, {10, 11}},
         "reduce_scatter #5 (float32, [10, 11] elements per rank, sum)"},
        {{Op::kReduceScatter, kF32, 10, kMax},
         "reduce_scatter #5 (float32, 10 elements per rank, max)"},
        {{Op::kReduceScatter, kI32}, "reduce_scatter #5 (int32, 10 elements per rank, sum)"},
        {{Op::kAllToAll}, "all_to_all #5 (float32, sends [10, 10], expects [10, 10] elements)"}}},
  };
}

std::vector<Deviation> MovingDeviations() {
  using Op = OpKind;
  return {
      {{{Op::kBroadcast}, "broadcast #5 (float32, 10 elements, root 0)"},
       {{{Op::kBroadcast, kF32, 10, kSum, 1}, "broadcast #5 (float32, 10 elements, root 1)"},
        {{Op::kBroadcast, kI32}, "broadcast #5 (int32, 10 elements, root 0)"},
        {{Op::kBroadcast, kF32, 1}, "broadcast #5 (float32, 1 element, root 0)"},
        {{Op::kScatter}, "scatter #5 (float32, 10 elements per rank, root 0)"}}},
      {{{Op::kAllGather}, "all_gather #5 (float32, 10 elements per rank)"},
       {{{Op::kAllGather, kF32, 0}, "all_gather #5 (float32, 0 elements per rank)"},
        {{Op::kAllGather, kF32, 10, kSum, 0, kApart, {10, 3}},
         "all_gather #5 (float32, [10, 3] elements per rank)"},
        {{Op::kAllGather, kI32}, "all_gather #5 (int32, 10 elements per rank)"},
        {{Op::kGather}, "gather #5 (float32, 10 elements per rank, root 0)"}}},
      {{{Op::kGather}, "gather #5 (float32, 10 elements per rank, root 0)"},
       {{{Op::kGather, kF32, 10, kSum, 1}, "gather #5 (float32, 10 elements per rank, root 1)"},
        {{Op::kGather, kF32, 11}, "gather #5 (float32, 11 elements per rank, root 0)"},
        {{Op::kGather, kF64}, "gather #5 (float64, 10 elements per rank, root 0)"}}},
      {{{Op::kScatter}, "scatter #5 (float32, 10 elements per rank, root 0)"},
       {{{Op::kScatter, kF32, 10, kSum, 1}, "scatter #5 (float32, 10 elements per rank, root 1)"},
        {{Op::kScatter, kF32, 11}, "scatter #5 (float32, 11 elements per rank, root 0)"},
        {{Op::kScatter, kF64}, "scatter #5 (float64, 10 elements per rank, root 0)"}}},
      {{{Op::kAllToAll}, "all_to_all #5 (float32, sends [10, 10], expects [10, 10] elements)"},
       {{{Op::kAllToAll, kF32, 9},
         "all_to_all #5 (float32, sends [9, 9], expects [9, 9] elements)"},
        {{Op::kAllToAll, kF64},
         "all_to_all #5 (float64, sends [10, 10], expects [10, 10] elements)"},
        {{Op::kBarrier}, "barrier #5"}}},
      {{{Op::kBarrier}, "barrier #5"}, {{{Op::kBarrier}, "barrier #6", 6}}},
  };
}

struct Elements {
  DType dtype;
  int64_t count;
};

std::string Describe(const Elements& elements) {
  return absl::StrCat(Name(elements.dtype), ", ", elements.count,
                      elements.count == 1 ? " element" : " elements");
}

// A send from rank 0 to rank 1 that does not fit the recv.
struct Misfit {
  const char* name;
  Elements sent, received;
};

// Whether this rank gets data from one rank alone, which makes the same call: then it may have its
// result before the call of a third rank is known.
bool TakesFromAnother(const Spec& spec, int rank, int deviant) {
  const bool has_one_source = spec.kind == OpKind::kBroadcast || spec.kind == OpKind::kScatter;
  return has_one_source && rank != deviant && rank != spec.root && spec.root != deviant;
}

void Try(const Quoted& usual, const Quoted& deviation, int deviant) {
  SCOPED_TRACE(absl::StrCat("rank ", deviant, " called ", deviation.text));
  SuiteCountdown made(
      Suite::size());  // A group that breaks before may be one that a rank cannot join.
  Suite::Run([&](std::shared_ptr<Backend>& backend, int rank) {
    made.StepAndWait();
    const Quoted& mine = rank == deviant ? deviation : usual;
    const Collective operation = Build(mine.spec, rank, Suite::size());
    absl::Status status =
        RunAndWait(*backend, operation, Suite::Within(kTimeout, mine.sequence)).status();
    if (const auto origin = OriginOf(status); origin.has_value()) {
      EXPECT_THAT(origin->operations, Contains(operation.OperationAt(mine.sequence, rank)))
          << status;
    }
    const bool is_done =
        status.ok() && (OnlyGives(mine.spec, rank) || TakesFromAnother(mine.spec, rank, deviant));
    if (is_done) {
      // At the next call that synchronises all ranks at the latest.
      status = RunAndWait(*backend, Collective::Barrier(), Suite::Within(kTimeout, 6)).status();
    }
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(absl::StrCat("rank ", deviant, " called ", deviation.text)),
                      HasSubstr(absl::StrCat(" called ", usual.text))));
    EXPECT_THAT(RanksOf(status), AllOf(SizeIs(2), Contains(deviant))) << status;
    const absl::Status data = is_done ? CheckDone(mine.spec, operation, rank, Suite::size())
                                      : CheckUntouched(mine.spec, operation, rank, Suite::size());
    EXPECT_TRUE(data.ok()) << data;
    EXPECT_EQ(RunAndWait(*backend, Collective::Barrier(), Suite::Within(kTimeout, 6)).status(),
              status);
  });
}

// `source` is what the receiver says.
void TryMisfit(const Misfit& misfit, int source) {
  SCOPED_TRACE(absl::StrCat(misfit.name, " from ", source));
  SuiteCountdown made(Suite::size());
  // A rank that leaves before is another reason for the next call to fail.
  SuiteCountdown told(Suite::size());
  const int tag = Suite::Case().ServesTags() ? 7 : 0;
  Suite::Run([&](std::shared_ptr<Backend>& backend, int rank) {
    made.StepAndWait();
    if (rank > 1) return told.StepAndWait();
    const Elements& own = rank == 0 ? misfit.sent : misfit.received;
    const Tensor tensor = Bytes(own.dtype, own.count, rank);
    const CallContext context = Suite::Within(kTimeout, 3);
    absl::Status status =
        rank == 0 ? RunAndWait(*backend, Collective::Send(tensor, 1, tag), context).status()
                  : RunAndWait(*backend, Collective::Recv(tensor, source, tag), context).status();
    // A send may return before the receive; the next call tells then.
    if (rank == 0 && status.ok())
      status = RunAndWait(*backend, Collective::Barrier(), Suite::Within(kTimeout, 4)).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    const std::string from = source == 0 ? "rank 0" : "any rank";
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(absl::StrCat("rank 0 called send #3 to rank 1 (",
                                             Describe(misfit.sent), ", tag ", tag, ")")),
                      HasSubstr(absl::StrCat("rank 1 called recv #3 from ", from, " (",
                                             Describe(misfit.received), ", tag ", tag, ")"))));
    EXPECT_THAT(RanksOf(status), ElementsAre(0, 1)) << status;
    if (rank == 1) {
      EXPECT_THAT(OriginOf(status).value_or(ErrorOrigin()).operations,
                  UnorderedElementsAre(ErrorOrigin::Operation{"send", 3, 1, 0},
                                       ErrorOrigin::Operation{"recv", 3, source, 1}))
          << status;
    }
    EXPECT_TRUE(SameBytes(tensor, Bytes(own.dtype, own.count, rank)));  // Nothing has moved.
    EXPECT_EQ(RunAndWait(*backend, Collective::Barrier(), Suite::Within(kTimeout, 4)).status(),
              status);
    told.StepAndWait();
  });
}

bool IsTested() {
  return Suite::size() > 1 && Suite::Case().mismatches == BackendCase::Mismatches::kDetected;
}

// With two ranks each of them deviates; with more, whose texts would differ, one now and then.
void TryAll(const std::vector<Deviation>& deviations) {
  int tried = 0;
  for (const auto& [usual, deviants] : deviations) {
    for (const Quoted& deviation : deviants) {
      const bool lists = absl::StrContains(usual.text + deviation.text, '[');
      if (Suite::size() == 2) {
        for (int deviant : {0, 1}) Try(usual, deviation, deviant);
      } else if (!lists && ++tried % (Suite::size() - 1) == 0) {
        Try(usual, deviation, tried % Suite::size());
      }
    }
  }
}

}  // namespace

TEST_P(BackendConformance, DifferentReductionsAreAMismatchOnEveryRank) {
  if (IsTested()) TryAll(ReducingDeviations());
}

TEST_P(BackendConformance, DifferentMovementsAreAMismatchOnEveryRank) {
  if (IsTested()) TryAll(MovingDeviations());
}

TEST_P(BackendConformance, OnePairOfAllToAllThatDoesNotFitIsAMismatchOnEveryRank) {
  if (!IsTested()) return;
  SuiteCountdown made(size());
  Run([&](std::shared_ptr<Backend>& backend, int rank) {
    made.StepAndWait();
    Collective operation = Build({OpKind::kAllToAll, kI32, 4}, rank, size());
    // The last rank has more for the one before it than that expects.
    if (rank == size() - 1) {
      std::vector<Tensor> inputs(operation.inputs.begin(), operation.inputs.end());
      inputs[size() - 2] = Bytes(kI32, 5, rank);
      operation.OwnInputs(std::move(inputs));
    }
    const absl::Status status = RunAndWait(*backend, operation, Within(kTimeout, 5)).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr(absl::StrCat("rank ", size() - 1, " called all_to_all #5 (int32, sends [")),
              HasSubstr(absl::StrCat("rank ", size() - 2, " called all_to_all #5 (int32, sends [")),
              HasSubstr(absl::StrCat("rank ", size() - 1, " sends 5 elements to rank ", size() - 2,
                                     ", which expects 4"))));
    EXPECT_THAT(RanksOf(status), ElementsAre(size() - 2, size() - 1)) << status;
  });
}

TEST_P(BackendConformance, ManyDifferentCallsAreAMismatchThatNamesTwoOfThem) {
  if (!IsTested()) return;
  SuiteCountdown made(size());
  Run([&](std::shared_ptr<Backend>& backend, int rank) {
    made.StepAndWait();
    const Collective operation = Build({OpKind::kAllReduce, kI32, 100 + rank}, rank, size());
    const absl::Status status = RunAndWait(*backend, operation, Within(kTimeout, 5)).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    int named = 0;
    for (int r = 0; r < size(); ++r) {
      const std::string quote =
          absl::StrCat("rank ", r, " called all_reduce #5 (int32, ", 100 + r, " elements, sum)");
      if (absl::StrContains(status.message(), quote)) ++named;
    }
    EXPECT_GE(named, 2) << status;
    EXPECT_THAT(RanksOf(status), SizeIs(2)) << status;
  });
}

TEST_P(BackendConformance, AMessageOfAnotherTypeOrSizeIsAMismatchOnBothSides) {
  if (size() == 1) return;
  const std::vector<Misfit> misfits = {
      {"longer", {DType::kInt16, 11}, {DType::kInt16, 10}},
      {"shorter", {DType::kInt16, 10}, {DType::kInt16, 11}},
      {"longer by far", {DType::kFloat64, 1 << 20}, {DType::kFloat64, 1}},
      {"shorter by far", {DType::kFloat64, 1}, {DType::kFloat64, 1 << 20}},
      {"another type of equal size", {DType::kFloat32, 10}, {DType::kInt32, 10}},
      {"another type with equal bytes", {DType::kFloat32, 10}, {DType::kFloat64, 5}},
      {"empty", {DType::kInt8, 0}, {DType::kInt8, 1}},
      {"not empty", {DType::kInt8, 1}, {DType::kInt8, 0}},
  };
  for (const Misfit& misfit : misfits) {
    TryMisfit(misfit, 0);
    if (Case().ServesTags()) TryMisfit(misfit, kAnySource);
  }
}

}  // namespace syncline
