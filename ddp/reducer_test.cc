#include "ddp/reducer.h"

#include <algorithm>
#include <vector>

#include "absl/synchronization/notification.h"
#include "core/shared_memory.h"
#include "core/status.h"
#include "core/testing/fake_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

FakeBackend::Behaviour Succeeds() {
  return [](FakeBackend&, OpKind, const CallContext&) { return absl::OkStatus(); };
}

// Three parameters of 10 floats, a bucket for each.
Reducer::Options OnePerBucket() {
  Reducer::Options options;
  options.names = {"first.weight", "second.weight", "third.weight"};
  options.caps = {40, 40};
  return options;
}

std::vector<Tensor> ThreeParameters() {
  return {Tensor::Zeros(DType::kFloat32, {2, 5}), Tensor::Zeros(DType::kFloat32, {10}),
          Tensor::Zeros(DType::kFloat32, {10})};
}

std::shared_ptr<Reducer> MakeReducer(std::shared_ptr<ProcessGroup> group) {
  return Reducer::Create(std::move(group), ThreeParameters(), OnePerBucket()).value();
}

// How many reductions of buckets the last group's backend has begun.
int64_t Reductions() {
  std::vector<std::string> calls = FakeBackend::Last()->calls();
  return std::count_if(calls.begin(), calls.end(),
                       [](const std::string& call) { return call.find("all_reduce") == 0; });
}

TEST(ReducerTest, ABucketIsReducedBeforeTheBackwardPassHasEnded) {
  absl::Notification reduced;
  auto group = MakeFakeGroup([&](FakeBackend&, OpKind kind, const CallContext&) {
    if (kind == OpKind::kAllReduce && !reduced.HasBeenNotified()) reduced.Notify();
    return absl::OkStatus();
  });
  auto reducer = MakeReducer(group);
  ASSERT_TRUE(reducer->MarkReady(2).ok());
  EXPECT_TRUE(reduced.WaitForNotificationWithTimeout(absl::Seconds(20)))
      << "the last parameter's bucket waits for the others";
  ASSERT_TRUE(reducer->MarkReady(1).ok());
  ASSERT_TRUE(reducer->MarkReady(0).ok());
  EXPECT_TRUE(reducer->Finish().ok());
  EXPECT_EQ(Reductions(), 3);
}

TEST(ReducerTest, BucketsStartInOneOrderWhateverBecomesReadyFirst) {
  auto group = MakeFakeGroup(Succeeds());
  auto reducer = MakeReducer(group);
  EXPECT_THAT(reducer->buckets(), ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(0)));
  ASSERT_TRUE(reducer->MarkReady(0).ok());
  ASSERT_TRUE(reducer->MarkReady(1).ok());
  EXPECT_EQ(Reductions(), 0) << "bucket 0, with parameter 2, must be the first on every rank";
  ASSERT_TRUE(reducer->MarkReady(2).ok());
  EXPECT_TRUE(reducer->Finish().ok());
  EXPECT_EQ(Reductions(), 3);
}

TEST(ReducerTest, GradientsAreViewsOfTheirParametersShape) {
  auto reducer = MakeReducer(MakeFakeGroup(Succeeds()));
  Tensor gradient = *reducer->gradient(0);
  EXPECT_THAT(gradient.shape(), ElementsAre(2, 5));
  gradient.data_as<float>()[9] = 3;
  EXPECT_EQ(reducer->gradient(0)->data_as<float>()[9], 3);
  EXPECT_EQ(KindOf(reducer->gradient(3).status()), ErrorKind::kArgument);
}

TEST(ReducerTest, LargeBucketsCanBeReadByOtherProcesses) {
  const Tensor large = Tensor::Zeros(DType::kFloat32, {4 << 20}),
               small = Tensor::Zeros(DType::kFloat32, {10});
  Reducer::Options options;
  options.caps = {40, 16 << 20};
  auto reducer = Reducer::Create(MakeFakeGroup(Succeeds()), {large, small}, options).value();
  const auto is_shared = [&](int64_t index) {
    const Tensor gradient = *reducer->gradient(index);
    return FindShared(gradient.data(), gradient.nbytes()).has_value();
  };
  EXPECT_TRUE(is_shared(0));
  EXPECT_FALSE(is_shared(1));
}

TEST(ReducerTest, CopyReadyPutsTheValueInPlace) {
  auto reducer = MakeReducer(MakeFakeGroup(Succeeds()));
  std::vector<float> value = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  ASSERT_TRUE(reducer->CopyReady(1, Tensor::Of(value)).ok());
  EXPECT_EQ(reducer->gradient(1)->data_as<float>()[9], 9);
  value.pop_back();
  EXPECT_THAT(std::string(reducer->CopyReady(2, Tensor::Of(value)).message()),
              HasSubstr("'third.weight'"));
}

TEST(ReducerTest, FinishNamesWhatIsMissingAndCanBeCalledAgain) {
  auto reducer = MakeReducer(MakeFakeGroup(Succeeds()));
  ASSERT_TRUE(reducer->MarkReady(1).ok());
  absl::Status status = reducer->Finish();
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'first.weight' (index 0)"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("'third.weight' (index 2)"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("second")));
  ASSERT_TRUE(reducer->MarkReady(0).ok());
  ASSERT_TRUE(reducer->MarkReady(2).ok());
  EXPECT_TRUE(reducer->Finish().ok());
}

TEST(ReducerTest, MarkingTwiceInAStepIsRefusedAndTheNextStepBeginsAnew) {
  auto reducer = MakeReducer(MakeFakeGroup(Succeeds()));
  for (int step = 0; step < 3; ++step) {
    for (int64_t i : {2, 0, 1}) ASSERT_TRUE(reducer->MarkReady(i).ok());
    EXPECT_THAT(std::string(reducer->MarkReady(0).message()), HasSubstr("twice"));
    ASSERT_TRUE(reducer->Finish().ok());
  }
  EXPECT_EQ(Reductions(), 9);
}

TEST(ReducerTest, AFailedReductionIsReportedByFinish) {
  auto group = MakeFakeGroup([](FakeBackend&, OpKind kind, const CallContext&) {
    return kind == OpKind::kAllReduce ? NetworkError("rank 1 is gone") : absl::OkStatus();
  });
  auto reducer = MakeReducer(group);
  absl::Status status = absl::OkStatus();
  for (int64_t i : {2, 1, 0}) status.Update(reducer->MarkReady(i));
  status.Update(reducer->Finish());
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 is gone"));
}

TEST(ReducerTest, BadPlansAreRefused) {
  auto group = MakeFakeGroup(Succeeds());
  auto kind = [&](const std::vector<Tensor>& parameters, Reducer::Options options) {
    return KindOf(Reducer::Create(group, parameters, std::move(options)).status());
  };
  EXPECT_EQ(kind({}, {}), ErrorKind::kArgument);
  EXPECT_EQ(kind(ThreeParameters(), {{"only one"}, {}}), ErrorKind::kArgument);
  EXPECT_EQ(kind(ThreeParameters(), {{}, {0, 1}}), ErrorKind::kArgument);
  EXPECT_EQ(kind({Tensor::Zeros(DType::kBool, {2})}, {}), ErrorKind::kArgument);
}

}  // namespace
}  // namespace syncline
