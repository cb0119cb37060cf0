// Gradients of which each rank has some rows.
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/process_group.h"
#include "syncline/reducer.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "tests/ddp/reducer_ranks.h"

namespace syncline {
namespace {

// Rows are gathered on the host alone.
void ExpectOnHost(int size, const std::function<absl::Status(Group)>& body) {
  ExpectOnRanks(size, body, "local");
}

using ::testing::HasSubstr;

// An embedding of 10 rows of 2, and a dense parameter of 3.
std::vector<Tensor> Embedding() {
  return {Tensor::Zeros(DType::kFloat32, {10, 2}), Tensor::Zeros(DType::kFloat32, {3})};
}

Reducer::Options Sparse(Reducer::Unused unused = Reducer::Unused::kRefused) {
  Reducer::Options options;
  options.names = {"embedding", "b"};
  options.sparse = {0};
  options.unused = unused;
  return options;
}

// Row k has both elements `value` + k.
absl::Status MarkRows(Reducer& reducer, std::vector<int64_t> indices, float value) {
  std::vector<float> values;
  for (size_t k = 0; k < indices.size(); ++k) {
    values.insert(values.end(), 2, value + static_cast<float>(k));
  }
  return reducer.MarkReadySparse(
      0, {Tensor::Of(indices), Tensor::Of(values).Reshape({Tensor::Of(indices).numel(), 2})});
}

// "3: 1 1, 5: 2 2": a row's index and its elements.
absl::StatusOr<std::string> Rows(const Reducer& reducer) {
  SYNCLINE_ASSIGN_OR_RETURN(const Reducer::Rows rows, reducer.rows(0));
  std::vector<std::string> texts;
  for (int64_t k = 0; k < rows.indices.numel(); ++k) {
    const float* row = rows.values.data_as<float>() + 2 * k;
    texts.push_back(absl::StrCat(rows.indices.data_as<int64_t>()[k], ": ", row[0], " ", row[1]));
  }
  return absl::StrJoin(texts, ", ");
}

absl::Status Expect(const Reducer& reducer, const std::string& rows) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string found, Rows(reducer));
  if (found == rows) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the rows are [", found, "], not [", rows, "]"));
}

TEST(ReducerSparseTest, RowsOfAllRanksFollowEachOtherAndAreDivided) {
  ExpectOnHost(3, [](Group group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                              Reducer::Create(group, Embedding(), Sparse()));
    EXPECT_TRUE_OR_RETURN(reducer->buckets() == (std::vector<std::vector<int64_t>>{{1}, {0}}));
    EXPECT_TRUE_OR_RETURN(!reducer->gradient(0).ok() && !reducer->MarkReady(0).ok());
    for (int step = 0; step < 3; ++step) {
      // Rank 0 has two rows, rank 1 none, rank 2 one.
      std::vector<int64_t> indices = {7, 7};
      if (group->rank() == 1) indices = {};
      if (group->rank() == 2) indices = {step};
      SYNCLINE_RETURN_IF_ERROR(MarkRows(*reducer, indices, 3 * (1.0f + group->rank())));
      SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, 1, 3));
      SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
      SYNCLINE_RETURN_IF_ERROR(
          Expect(*reducer, absl::StrCat("7: 1 1, 7: 1.33333 1.33333, ", step, ": 3 3")));
      SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, 1, 3));
    }
    const ReducerStats stats = reducer->stats();
    EXPECT_TRUE_OR_RETURN(stats.end.size() == 2 && stats.end[1] > stats.start[1]);
    EXPECT_TRUE_OR_RETURN(stats.bucket_bytes[1] == 3 * (8 + 8));
    return absl::OkStatus();
  });
}

TEST(ReducerSparseTest, UnusedAndShadowRowsAreNoRows) {
  ExpectOnHost(2, [](Group group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                              Reducer::Create(group, Embedding(), Sparse(Reducer::Unused::kFound)));
    SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, 1, 1));
    SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
    SYNCLINE_RETURN_IF_ERROR(Expect(*reducer, ""));
    EXPECT_TRUE_OR_RETURN(!*reducer->is_used(0));
    if (group->rank() == 0) {
      SYNCLINE_RETURN_IF_ERROR(reducer->ShadowStep(1));
    } else {
      Reducer::Step step;
      step.divisor = 1;
      SYNCLINE_RETURN_IF_ERROR(reducer->BeginStep(step));
      SYNCLINE_RETURN_IF_ERROR(MarkRows(*reducer, {4}, 5));
      SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
    }
    EXPECT_TRUE_OR_RETURN(*reducer->is_used(0) && !*reducer->is_used(1));
    return Expect(*reducer, "4: 5 5");
  });
}

TEST(ReducerSparseTest, RowsAccumulateOverStepsThatDoNotCommunicate) {
  ExpectOnHost(2, [](Group group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                              Reducer::Create(group, Embedding(), Sparse()));
    for (int round = 0; round < 2; ++round) {
      for (const auto sync : {Reducer::Sync::kNone, Reducer::Sync::kAllRanks}) {
        Reducer::Step step;
        step.sync = sync;
        SYNCLINE_RETURN_IF_ERROR(reducer->BeginStep(step));
        SYNCLINE_RETURN_IF_ERROR(MarkRows(*reducer, {group->rank()}, 2));
        SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, 1, 2));
        SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
      }
      SYNCLINE_RETURN_IF_ERROR(Holds(*reducer, 1, 4));
      SYNCLINE_RETURN_IF_ERROR(Expect(*reducer, "0: 1 1, 0: 1 1, 1: 1 1, 1: 1 1"));
    }
    return absl::OkStatus();
  });
}

TEST(ReducerSparseTest, ARankWithoutRowsIsNamedLikeAnyOther) {
  for (const absl::Status& status : OnRanks(2, [](Group group) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                                   Reducer::Create(group, Embedding(), Sparse()));
         if (group->rank() == 0) SYNCLINE_RETURN_IF_ERROR(MarkRows(*reducer, {1}, 1));
         SYNCLINE_RETURN_IF_ERROR(Copy(*reducer, 1, 1));
         return reducer->Finish();
       })) {
    EXPECT_THAT(Message(status),
                HasSubstr("rank 1 produced no gradient for 'embedding' (index 0)"));
  }
}

TEST(ReducerSparseTest, WhatAreNoRowsOfTheParameterIsRefused) {
  ExpectOnHost(1, [](Group group) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Reducers reducer,
                              Reducer::Create(group, Embedding(), Sparse()));
    const Tensor two = Tensor::Zeros(DType::kInt64, {2});
    const auto refusal = [&](const Tensor& indices, const Tensor& values) {
      return Message(reducer->MarkReadySparse(0, {indices, values}));
    };
    EXPECT_THAT(refusal(two, Tensor::Zeros(DType::kFloat32, {2, 3})),
                HasSubstr("'embedding' (index 0): values must be contiguous float32[2, 2]"));
    EXPECT_THAT(refusal(two, Tensor::Zeros(DType::kFloat64, {2, 2})), HasSubstr("float32[2, 2]"));
    EXPECT_THAT(refusal(Tensor::Zeros(DType::kInt32, {2}), Tensor::Zeros(DType::kFloat32, {2, 2})),
                HasSubstr("int64[n]"));
    two.data_as<int64_t>()[1] = 10;
    EXPECT_THAT(refusal(two, Tensor::Zeros(DType::kFloat32, {2, 2})),
                HasSubstr("index 10 is not a row"));
    EXPECT_THAT(Message(reducer->MarkReadySparse(1, {})), HasSubstr("not among the sparse"));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace syncline
