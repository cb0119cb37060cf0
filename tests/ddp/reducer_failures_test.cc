// Ranks that differ, fail and die, and reducers that go on without them.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/comm_hook.h"
#include "syncline/error_origin.h"
#include "syncline/process_group.h"
#include "syncline/reducer.h"
#include "syncline/status.h"
#include "syncline/subgroups.h"
#include "syncline/tensor.h"
#include "tests/ddp/reducer_ranks.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

struct Plan {
  std::vector<Tensor> parameters = SmallModel();
  Reducer::Options options = SmallOptions();
};

// What all of three ranks say when rank 1's plan is made different by `change`.
std::string Mismatch(const std::function<void(Plan&)>& change, ErrorKind own_kind) {
  const auto statuses = OnRanks(3, [&](Group group) -> absl::Status {
    Plan plan;
    if (group->rank() == 1) change(plan);
    const absl::Status status = Reducer::Create(group, plan.parameters, plan.options).status();
    EXPECT_TRUE_OR_RETURN(group->status().ok());
    return status;
  });
  for (int rank : {0, 1, 2}) {
    EXPECT_FALSE(statuses[rank].ok());
    if (statuses[rank].ok()) continue;
    EXPECT_EQ(KindOf(statuses[rank]), rank == 1 ? own_kind : ErrorKind::kMismatch);
    if (own_kind == ErrorKind::kMismatch) {
      EXPECT_EQ(statuses[rank], statuses[0]);
      EXPECT_EQ(RanksOf(statuses[rank]), std::vector<int>({0, 1, 2}));
    } else if (rank != 1) {
      EXPECT_EQ(RanksOf(statuses[rank]), std::vector<int>({1}));
    }
  }
  return Message(statuses[0]);
}

std::string Mismatch(const std::function<void(Plan&)>& change) {
  return Mismatch(change, ErrorKind::kMismatch);
}

TEST(ReducerFailuresTest, RanksWithDifferentParametersAllLearnWhichIsTheFirst) {
  EXPECT_THAT(
      Mismatch([](Plan& plan) { plan.parameters[1] = Tensor::Zeros(DType::kInt32, {3}); }),
      HasSubstr("differ in parameter 'b' (index 1): ranks 0, 2 have float32[3] on cpu, rank "
                "1 has int32[3] on cpu; build the same model"));
  EXPECT_THAT(Mismatch([](Plan& plan) { plan.parameters[0] = plan.parameters[0].Reshape({3, 2}); }),
              HasSubstr("parameter 'w' (index 0): ranks 0, 2 have float32[2, 3] on cpu, rank 1 has "
                        "float32[3, 2] on cpu"));
  EXPECT_THAT(Mismatch([](Plan& plan) {
                plan.parameters.pop_back();
                plan.options.names.pop_back();
              }),
              HasSubstr("the number of parameters: ranks 0, 2 have 3, rank 1 has 2"));
  EXPECT_THAT(Mismatch([](Plan& plan) { plan.options.names[2] = "x"; }),
              HasSubstr("the name of parameter 2: ranks 0, 2 have 'v', rank 1 has 'x'"));
  EXPECT_THAT(Mismatch([](Plan& plan) { plan.options.names.clear(); }),
              HasSubstr("whether parameters have names: ranks 0, 2 have yes, rank 1 has no"));
}

TEST(ReducerFailuresTest, RanksWithDifferentOptionsAllLearnWhich) {
  EXPECT_THAT(Mismatch([](Plan& plan) { plan.options.caps.first = 2; }),
              HasSubstr("the bucket caps: ranks 0, 2 have 1 and then 1 bytes, rank 1 has 2 and"));
  EXPECT_THAT(Mismatch([](Plan& plan) { plan.options.caps.list = {5, 6}; }),
              HasSubstr("rank 1 has 5, 6 bytes"));
  EXPECT_THAT(Mismatch([](Plan& plan) { plan.options.sparse = {1}; }),
              HasSubstr("the sparse parameters: ranks 0, 2 have [], rank 1 has [1]"));
  EXPECT_THAT(Mismatch([](Plan& plan) { plan.options.rebuild = false; }),
              HasSubstr("whether buckets are rebuilt"));
  EXPECT_THAT(Mismatch([](Plan& plan) { plan.options.unused = Reducer::Unused::kRecorded; }),
              HasSubstr("rank 1 has record them in the first step (static graph)"));
}

TEST(ReducerFailuresTest, ABadArgumentOfOneRankIsToldToAll) {
  EXPECT_THAT(Mismatch([](Plan& plan) { plan.options.caps.first = 0; }, ErrorKind::kArgument),
              HasSubstr("rank 1 could not set up its reducer: bucket caps must be positive"));
}

absl::Status Steps(Reducer& reducer, int count, float mine) {
  for (int step = 0; step < count; ++step) {
    for (int64_t i : {0, 1, 2}) SYNCLINE_RETURN_IF_ERROR(Copy(reducer, i, mine));
    SYNCLINE_RETURN_IF_ERROR(reducer.Finish());
  }
  return absl::OkStatus();
}

// Two steps of all ranks; in the third, the last rank dies when it has made a gradient. The others
// go on without it.
absl::Status LoseTheLast(Group group, Countdown& dying) {
  SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                            Reducer::Create(group, SmallModel(), SmallOptions()));
  const int last = group->size() - 1;
  const float mine = static_cast<float>(group->rank());
  SYNCLINE_RETURN_IF_ERROR(Steps(*reducer, 2, mine));
  SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, 0, mine));
  dying.StepAndWait();
  if (group->rank() == last) {
    group->Abort("it is lost");
    return absl::OkStatus();
  }
  absl::Status failure;
  for (int64_t i : {1, 2}) failure.Update(Copy(*reducer, i, mine));
  failure.Update(reducer->Finish());
  // On streams alone, a later call tells.
  while (failure.ok()) failure = Steps(*reducer, 1, mine);
  EXPECT_THAT(Message(failure), HasSubstr("rank 2"));
  SYNCLINE_ASSIGN_OR_RETURN(const Group survivors, Shrink(*group, {last}));
  const auto buckets = reducer->buckets();
  SYNCLINE_RETURN_IF_ERROR(reducer->ReplaceGroup(survivors));
  EXPECT_TRUE_OR_RETURN(reducer->buckets() == buckets);
  SYNCLINE_RETURN_IF_ERROR(Steps(*reducer, 2, mine));
  for (int64_t i : {2, 1, 0}) SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, i, 0.5));
  EXPECT_TRUE_OR_RETURN(reducer->stats().steps >= 4);
  return survivors->Barrier();
}

TEST(ReducerFailuresTest, ADeathInTheBackwardPassIsNamedAndTheSurvivorsGoOn) {
  for (const char* backend :
       {"local", "shm", "gloo", "tcp", "auto@cuda", "nccl@cuda", "shm@cuda"}) {
    constexpr int kRanks = 3;
    Countdown dying(kRanks);
    ExpectOnRanks(
        kRanks, [&](Group group) { return LoseTheLast(std::move(group), dying); }, backend);
  }
}

TEST(ReducerFailuresTest, SurvivorsOnDifferentSidesOfAStepTakeTheStateOfTheFirst) {
  ExpectOnRanks(2, [](Group group) -> absl::Status {
    // Rank 0 has made a step, and with it new buckets, in a group of its own.
    SYNCLINE_ASSIGN_OR_RETURN(const Group alone, Split(*group, {{0}, {1}}));
    Reducer::Options options = SmallOptions();
    options.unused = Reducer::Unused::kRecorded;
    SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                              Reducer::Create(alone, SmallModel(), options));
    if (group->rank() == 0) {
      for (int64_t i : {0, 2}) SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, i, 1));
      SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
    }
    SYNCLINE_RETURN_IF_ERROR(reducer->ReplaceGroup(group));
    EXPECT_TRUE_OR_RETURN(reducer->buckets() == (std::vector<std::vector<int64_t>>{{0}, {2}, {1}}));
    EXPECT_TRUE_OR_RETURN(reducer->generation() == 2);
    for (int64_t i : {2, 0}) SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, i, 1));  // Without 'b'.
    SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
    EXPECT_TRUE_OR_RETURN(reducer->stats().steps == 2);
    return Holds(*reducer, 0, 1);
  });
}

TEST(ReducerFailuresTest, AGroupWhoseReducersDifferIsNotGoneOnIn) {
  for (const absl::Status& status : OnRanks(2, [](Group group) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(const Group alone, Split(*group, {{0}, {1}}));
         std::vector<Tensor> parameters = SmallModel();
         if (group->rank() == 1) parameters[2] = Tensor::Zeros(DType::kFloat32, {6});
         SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                   Reducer::Create(alone, parameters, SmallOptions()));
         return reducer->ReplaceGroup(group);
       })) {
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch);
    EXPECT_THAT(Message(status), HasSubstr("parameter 'v' (index 2): rank 0 has float32[5]"));
  }
}

// An all-reduce that fails on one rank.
class OneFails final : public CommHook {
 public:
  std::string name() const override { return "one_fails"; }
  absl::Status Attach(std::shared_ptr<ProcessGroup> group) override {
    group_ = std::move(group);
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<Work>> Start(std::shared_ptr<GradBucket> bucket) override {
    if (group_->rank() == 1 && bucket->index == 1) return ArgumentError("a mistake of the user's");
    return group_->AllReduceAsync(bucket->buffer, ReduceOp::kAvg);
  }

 private:
  Group group_;
};

TEST(ReducerFailuresTest, AHookThatFailsOnOneRankIsNamedOnAll) {
  const auto statuses = OnRanks(2, [](Group group) -> absl::Status {
    Reducer::Options options = SmallOptions();
    options.hook = std::make_shared<OneFails>();
    SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                              Reducer::Create(group, SmallModel(), options));
    absl::Status failure;
    for (int64_t i : {2, 1, 0}) failure.Update(Copy(*reducer, i, 1));
    failure.Update(reducer->Finish());
    return failure;
  });
  EXPECT_EQ(KindOf(statuses[1]), ErrorKind::kArgument);
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(Message(status), HasSubstr("communication hook 'one_fails', bucket 1: a mistake"));
  }
}

TEST(ReducerFailuresTest, RanksWithDifferentHooksAllLearnIt) {
  for (const absl::Status& status : OnRanks(2, [](Group group) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                   Reducer::Create(group, SmallModel(), SmallOptions()));
         return reducer->SetHook(group->rank() == 0 ? nullptr : std::make_shared<OneFails>());
       })) {
    EXPECT_THAT(Message(status), HasSubstr("rank 0 has all_reduce, rank 1 has one_fails"));
    EXPECT_EQ(RanksOf(status), std::vector<int>({0, 1}));
  }
}

TEST(ReducerFailuresTest, AFailedStepIsNotCountedNorTellsWhatIsUsed) {
  ExpectOnRanks(2, [](Group group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Group alone, Split(*group, {{0}, {1}}));
    SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                              Reducer::Create(alone, SmallModel(), SmallOptions()));
    const int64_t made = group->rank() == 0 ? 2 : 3;  // By the first rank one too few.
    for (int64_t i = 0; i < made; ++i) SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, i, 1));
    EXPECT_TRUE_OR_RETURN(reducer->Finish().ok() == (made == 3));
    EXPECT_TRUE_OR_RETURN(reducer->stats().steps == group->rank());
    SYNCLINE_RETURN_IF_ERROR(reducer->ReplaceGroup(group));
    EXPECT_TRUE_OR_RETURN(!reducer->is_used(0).ok());
    SYNCLINE_RETURN_IF_ERROR(Steps(*reducer, 1, 1));
    EXPECT_TRUE_OR_RETURN(reducer->stats().steps == 1);
    EXPECT_TRUE_OR_RETURN(*reducer->is_used(0));
    return absl::OkStatus();
  });
}

TEST(ReducerFailuresTest, AHookOfAnotherReducerIsRefusedUntilThatIsDoneWithIt) {
  ExpectOnRanks(2, [](Group group) -> absl::Status {
    const auto refused = [](const absl::Status& status, ErrorKind kind) {
      EXPECT_EQ(KindOf(status), kind);
      EXPECT_THAT(Message(status),
                  HasSubstr("communication hook 'one_fails' belongs to another reducer"));
    };
    const auto hook = std::make_shared<OneFails>();
    Reducer::Options options = SmallOptions();
    options.hook = hook;
    SYNCLINE_ASSIGN_OR_RETURN(Reducers first, Reducer::Create(group, SmallModel(), options));
    SYNCLINE_RETURN_IF_ERROR(first->SetHook(hook));  // It has it already.
    refused(Reducer::Create(group, SmallModel(), options).status(), ErrorKind::kArgument);
    const bool shares = group->rank() == 1;
    options.hook = nullptr;
    SYNCLINE_ASSIGN_OR_RETURN(Reducers second, Reducer::Create(group, SmallModel(), options));
    refused(second->SetHook(shares ? hook : std::make_shared<OneFails>()),
            shares ? ErrorKind::kArgument : ErrorKind::kMismatch);
    SYNCLINE_RETURN_IF_ERROR(first->SetHook(nullptr));
    SYNCLINE_RETURN_IF_ERROR(second->SetHook(hook));
    refused(first->SetHook(hook), ErrorKind::kArgument);
    second = nullptr;
    return first->SetHook(hook);
  });
}

// Ends its averages when the test says so.
class Held final : public CommHook {
 public:
  ~Held() override { dropped(); }
  std::string name() const override { return "held"; }
  absl::Status Attach(std::shared_ptr<ProcessGroup>) override { return absl::OkStatus(); }
  absl::StatusOr<std::shared_ptr<Work>> Start(std::shared_ptr<GradBucket>) override {
    auto work = std::make_shared<Work>("held");
    work->Start();
    works.push_back(work);
    if (!holds) work->Finish(absl::OkStatus());
    return work;
  }
  void Reset() override { ++resets; }

  bool holds = false;
  int resets = 0;
  std::vector<std::shared_ptr<Work>> works;
  std::function<void()> dropped = [] {};
};

TEST(ReducerFailuresTest, AHookThatIsStillAtWorkInTheOldGroupIsNotReset) {
  ExpectOnRanks(
      2,
      [](Group group) -> absl::Status {
        const auto hook = std::make_shared<Held>();
        hook->holds = group->rank() == 1;
        Reducer::Options options = SmallOptions();
        options.hook = hook;
        SYNCLINE_ASSIGN_OR_RETURN(const Group alone, Split(*group, {{0}, {1}}));
        SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                  Reducer::Create(alone, SmallModel(), options));
        for (int64_t i : {2, 0, 1}) SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, i, 1));
        if (!hook->holds) SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
        EXPECT_TRUE_OR_RETURN(hook->resets == (hook->holds ? 0 : 1));
        SYNCLINE_RETURN_IF_ERROR(reducer->ReplaceGroup(group));
        EXPECT_TRUE_OR_RETURN(reducer->buckets() ==
                              (std::vector<std::vector<int64_t>>{{2}, {0}, {1}}));
        EXPECT_TRUE_OR_RETURN(hook->resets == (hook->holds ? 0 : 1));
        if (hook->holds) {
          for (const auto& work : hook->works) work->Finish(absl::OkStatus());
        }
        hook->holds = false;
        return Steps(*reducer, 1, 1);
      },
      "local");
}

TEST(ReducerFailuresTest, AHookThatIsDroppedMayAskTheReducer) {
  ExpectOnRanks(1, [](Group group) -> absl::Status {
    auto hook = std::make_shared<Held>();
    Reducer::Options options = SmallOptions();
    options.hook = hook;
    SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                              Reducer::Create(group, SmallModel(), std::move(options)));
    int64_t generation = 0;
    hook->dropped = [&] { generation = reducer->generation(); };
    hook = nullptr;
    SYNCLINE_RETURN_IF_ERROR(reducer->SetHook(nullptr));
    EXPECT_TRUE_OR_RETURN(generation == 1);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace syncline
