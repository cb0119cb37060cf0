// Reducers of several ranks, as threads of one process.
#include "tests/ddp/reducer_ranks.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "core/tensor/shared_place.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/process_group.h"
#include "syncline/reducer.h"
#include "syncline/status.h"
#include "syncline/tensor.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Four steps, in an order of arrival that differs between ranks and from that of the buckets.
absl::Status AverageFourSteps(Group group) {
  SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                            Reducer::Create(group, SmallModel(), SmallOptions()));
  const float mean = static_cast<float>(group->size() - 1) / 2;
  for (int step = 0; step < 4; ++step) {
    std::vector<int64_t> order = {1, 0, 2};
    if (group->rank() % 2 == 1) std::reverse(order.begin(), order.end());
    for (int64_t i : order) {
      const float mine = static_cast<float>(group->rank() + 10 * i + 100 * step);
      SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, i, mine));
    }
    SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
    for (int64_t i : order) {
      SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, i, mean + static_cast<float>(10 * i + 100 * step)));
      EXPECT_TRUE_OR_RETURN(*reducer->is_used(i));
    }
    EXPECT_TRUE_OR_RETURN(reducer->generation() == 2);  // In rank 0's order.
    EXPECT_TRUE_OR_RETURN(reducer->buckets() == (std::vector<std::vector<int64_t>>{{1}, {0}, {2}}));
  }
  return absl::OkStatus();
}

TEST(ReducerRanksTest, AveragesAreThoseOfAllRanksInAnyOrderOfArrivalAndAfterTheRebuild) {
  for (const int size : {1, 2, 3}) {
    for (const char* backend :
         {"shm", "gloo", "tcp", "auto", "gloo@cuda", "cpu:gloo,cuda:nccl@cuda"}) {
      ExpectOnRanks(size, AverageFourSteps, backend);
    }
    ExpectOnRanks(size, AverageFourSteps);
  }
}

// Buckets that ranks of a host read where they lie.
TEST(ReducerRanksTest, LargeBucketsAreAveragedLikeSmallOnes) {
  for (const char* backend : {"local", "shm", "nccl@cuda", "shm@cuda"}) {
    ExpectOnRanks(
        2,
        [](Group group) -> absl::Status {
          const std::vector<Tensor> parameters(2, Parameter(DType::kFloat32, {3000001}));
          Reducer::Options options;
          options.caps.first = options.caps.others;
          SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                    Reducer::Create(group, parameters, options));
          EXPECT_TRUE_OR_RETURN(TestDevice().type == DeviceType::kCuda ||
                                tensor::FindShared(reducer->gradient(0)->data(), 1).has_value());
          for (int step = 0; step < 2; ++step) {
            for (int64_t i : {1, 0}) {
              SYNCLINE_RETURN_IF_ERROR(
                  Copy(*reducer, i, static_cast<float>(i + 2 * group->rank() + step)));
            }
            SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
            for (int64_t i : {1, 0}) {
              SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, i, static_cast<float>(i + 1 + step)));
            }
          }
          return absl::OkStatus();
        },
        backend);
  }
}

TEST(ReducerRanksTest, ElementTypesGoInBucketsOfTheirOwnAndDivisorsHoldForAll) {
  ExpectOnRanks(3, [](Group group) -> absl::Status {
    const std::vector<Tensor> parameters = {
        Parameter(DType::kFloat64, {4}), Parameter(DType::kInt32, {3}),
        Parameter(DType::kFloat64, {1}), Parameter(DType::kFloat32, {0})};
    SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer, Reducer::Create(group, parameters, {}));
    EXPECT_TRUE_OR_RETURN(reducer->buckets().size() == 3);
    for (const int64_t divisor : {0, 2, 4}) {
      Reducer::Step step;
      step.divisor = divisor;
      SYNCLINE_RETURN_IF_ERROR(reducer->BeginStep(step));
      const int64_t rank = group->rank();
      std::vector<double> four(4, 2.0 * static_cast<double>(rank)), one = {1};
      std::vector<int32_t> three(3, static_cast<int32_t>(rank * 10));
      std::vector<float> none;
      const Tensor values[] = {Tensor::Of(four), Tensor::Of(three), Tensor::Of(one),
                               Tensor::Of(none)};
      for (const int64_t i : {3, 2, 1, 0}) {
        SYNCLINE_ASSIGN_OR_RETURN(const Tensor placed, Placed(values[i]));
        SYNCLINE_RETURN_IF_ERROR(reducer->CopyReady(i, placed));
      }
      SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
      const double by = divisor == 0 ? 3 : static_cast<double>(divisor);
      SYNCLINE_ASSIGN_OR_RETURN(const Tensor doubles, Fetched(*reducer->gradient(0)));
      SYNCLINE_ASSIGN_OR_RETURN(const Tensor ints, Fetched(*reducer->gradient(1)));
      EXPECT_TRUE_OR_RETURN(doubles.data_as<double>()[3] == 6 / by);
      EXPECT_TRUE_OR_RETURN(ints.data_as<int32_t>()[2] == static_cast<int32_t>(30 / by));
    }
    return absl::OkStatus();
  });
}

TEST(ReducerRanksTest, AllRanksLearnWhichRankHasNoGradientForWhatAndTheNextStepWorks) {
  const auto statuses = OnRanks(3, [](Group group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                              Reducer::Create(group, SmallModel(), SmallOptions()));
    absl::Status outcome;
    for (int step = 0; step < 3; ++step) {
      for (int64_t i : {2, 1, 0}) {
        if (step == 1 && i == group->rank() && i != 2) continue;  // Rank 0 'w', rank 1 'b'.
        SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, i, 1));
      }
      const absl::Status finished = reducer->Finish();
      EXPECT_TRUE_OR_RETURN(finished.ok() == (step != 1));
      outcome.Update(finished);
    }
    SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, 0, 1));
    EXPECT_TRUE_OR_RETURN(group->status().ok());
    return outcome;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
    EXPECT_THAT(Message(status), HasSubstr("rank 0 produced no gradient for 'w' (index 0); rank 1 "
                                           "produced no gradient for 'b' (index 1); give every "));
    EXPECT_EQ(status, statuses[0]);
  }
}

TEST(ReducerRanksTest, WhatAllRanksLackIsSaidOfNone) {
  for (const absl::Status& status : OnRanks(2, [](Group group) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                   Reducer::Create(group, SmallModel(), SmallOptions()));
         SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, 1, 1));
         return reducer->Finish();
       })) {
    EXPECT_THAT(Message(status),
                HasSubstr("no rank produced a gradient for 'w' (index 0), 'v' (index 2); "));
  }
}

TEST(ReducerRanksTest, UnusedParametersAreFoundInEachStep) {
  for (const int size : {1, 2, 3}) {
    ExpectOnRanks(size, [size](Group group) -> absl::Status {
      Reducer::Options options = SmallOptions();
      options.unused = Reducer::Unused::kFound;
      SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                Reducer::Create(group, SmallModel(), options));
      for (int step = 0; step < 3; ++step) {
        // 'w' is used by rank 0 only, 'b' by none in every other step, 'v' by all.
        if (group->rank() == 0) SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, 0, 6));
        if (step % 2 == 0) SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, 1, 5));
        SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, 2, 3));
        SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
        EXPECT_TRUE_OR_RETURN(*reducer->is_used(0));
        EXPECT_TRUE_OR_RETURN(*reducer->is_used(1) == (step % 2 == 0));
        SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, 0, 6.0f / static_cast<float>(size)));
        SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, 1, step % 2 == 0 ? 5 : 0));
        SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, 2, 3));
      }
      return absl::OkStatus();
    });
  }
}

TEST(ReducerRanksTest, AStaticGraphIsRecordedInTheFirstStep) {
  const auto statuses = OnRanks(2, [](Group group) -> absl::Status {
    Reducer::Options options = SmallOptions();
    options.unused = Reducer::Unused::kRecorded;
    SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                              Reducer::Create(group, SmallModel(), options));
    for (int step = 0; step < 3; ++step) {  // 'b' is unused; 'w' is used by rank 1 only, at first.
      SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, 2, 3));
      if (step > 0 || group->rank() == 1) SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, 0, 4));
      SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
      SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, 0, step == 0 ? 2 : 4));
      SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, 1, 0));
      EXPECT_TRUE_OR_RETURN(*reducer->is_used(0) && !*reducer->is_used(1));
    }
    if (group->rank() == 0) {
      EXPECT_TRUE_OR_RETURN(!Copy(*reducer, 1, 1).ok());
      SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, 0, 1));
    }
    SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, 2, 1));
    return reducer->Finish();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr("rank 0 produced a gradient, though it was to have none, for 'b'"),
                      HasSubstr("rank 1 produced no gradient for 'w'"), HasSubstr("static graph")));
  }
}

TEST(ReducerRanksTest, GradientsAccumulateUntilAStepThatCommunicates) {
  ExpectOnRanks(2, [](Group group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                              Reducer::Create(group, SmallModel(), SmallOptions()));
    const float mine = group->rank() == 0 ? 1 : 3;
    Reducer::Step local;
    local.sync = Reducer::Sync::kNone;
    for (int round = 0; round < 2; ++round) {
      for (int step = 0; step < 3; ++step) {
        if (step < 2) SYNCLINE_RETURN_IF_ERROR(reducer->BeginStep(local));
        for (int64_t i : {2, 1, 0}) SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, i, mine));
        SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
        if (step < 2) SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, 0, mine * (step + 1)));
      }
      for (int64_t i : {2, 1, 0}) SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, i, 6));
    }
    return absl::OkStatus();
  });
}

// Rank r has steps[r] steps of input.
void ExpectUnevenInputs(Reducer::Unused unused, const std::vector<int>& steps) {
  ExpectOnRanks(static_cast<int>(steps.size()), [&](Group group) -> absl::Status {
    Reducer::Options options = SmallOptions();
    options.unused = unused;
    SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                              Reducer::Create(group, SmallModel(), options));
    for (int step = 0; step < steps[group->rank()]; ++step) {
      SYNCLINE_ASSIGN_OR_RETURN(const int64_t active,
                                reducer->CountActive(Reducer::Activity::kActive));
      float sum = 0, count = 0;
      for (size_t r = 0; r < steps.size(); ++r) {
        if (steps[r] <= step) continue;
        sum += static_cast<float>(r + 1);
        ++count;
      }
      EXPECT_TRUE_OR_RETURN(active == static_cast<int64_t>(count));
      Reducer::Step begin;
      begin.divisor = active;
      SYNCLINE_RETURN_IF_ERROR(reducer->BeginStep(begin));
      for (int64_t i : {1, 2, 0}) {
        SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, i, static_cast<float>(group->rank() + 1)));
      }
      SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
      for (int64_t i : {1, 2, 0}) {
        SYNCLINE_ASSIGN_OR_RETURN(const float value, Value(*reducer, i));
        EXPECT_TRUE_OR_RETURN(std::abs(value - sum / count) < 1e-6);
      }
    }
    while (true) {
      SYNCLINE_ASSIGN_OR_RETURN(const int64_t active,
                                reducer->CountActive(Reducer::Activity::kJoined));
      if (active == 0) return absl::OkStatus();
      SYNCLINE_RETURN_IF_ERROR(reducer->ShadowStep(active));
    }
  });
}

TEST(ReducerRanksTest, RanksWithoutInputTakePartWithZerosUntilAllHaveRunOut) {
  for (const auto unused :
       {Reducer::Unused::kRefused, Reducer::Unused::kFound, Reducer::Unused::kRecorded}) {
    ExpectUnevenInputs(unused, {0, 2, 5});
    ExpectUnevenInputs(unused, {3, 0});
    ExpectUnevenInputs(unused, {0, 0});
    ExpectUnevenInputs(unused, {2});
  }
}

TEST(ReducerRanksTest, ThreadsOfOneRankMarkTheirGradientsAtOnce) {
  ExpectOnRanks(2, [](Group group) -> absl::Status {
    constexpr int64_t kParameters = 64, kThreads = 4;
    const std::vector<Tensor> parameters(kParameters, Parameter(DType::kFloat32, {100}));
    Reducer::Options options;
    options.caps = {400, 1200};
    SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer, Reducer::Create(group, parameters, options));
    for (int step = 0; step < 20; ++step) {
      std::vector<absl::Status> outcomes(kThreads);
      std::vector<std::thread> threads;
      for (int64_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
          for (int64_t i = t; i < kParameters; i += kThreads) {
            outcomes[t].Update(Copy(*reducer, i, static_cast<float>(i + group->rank())));
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (const absl::Status& outcome : outcomes) SYNCLINE_RETURN_IF_ERROR(outcome);
      SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
      for (int64_t i = 0; i < kParameters; ++i) {
        SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, i, static_cast<float>(i) + 0.5f));
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace syncline
