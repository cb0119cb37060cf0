#include "syncline/reducer.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/tensor/shared_place.h"
#include "core/testing/deferred_backend.h"
#include "core/testing/fake_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

// How many all-reduces the last group's backend has begun. A step ends with one that is not of a
// bucket.
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
  EXPECT_EQ(Reductions(), 3 + 1);
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
  EXPECT_EQ(Reductions(), 3 + 1);
}

TEST(ReducerTest, AnOrderOfRankZeroThatIsNoneOfTheParametersIsAnError) {
  for (const int64_t wrong : {int64_t{3}, int64_t{-1}, int64_t{1} << 40, int64_t{1}}) {
    auto group = MakeFakeGroup([&](FakeBackend&, OpKind kind, const CallContext& context) {
      const Tensor* const sent = context.collective->tensor;
      if (kind == OpKind::kBroadcast && sent->dtype() == DType::kInt64 && sent->numel() == 3) {
        sent->data_as<int64_t>()[0] = wrong;  // In place of 2.
      }
      return absl::OkStatus();
    });
    auto reducer = MakeReducer(group);
    for (const int64_t index : {2, 1, 0}) ASSERT_TRUE(reducer->MarkReady(index).ok());
    const absl::Status finished = reducer->Finish();
    EXPECT_THAT(std::string(finished.message()), HasSubstr("rank 0 sent an order")) << wrong;
  }
}

TEST(ReducerTest, RowsOfARankThatAreNoneOfTheParameterAreAnErrorThatNamesIt) {
  struct Case {
    int exchange;  // The numbers of rows come first, then the indices.
    int64_t number;
    const char* text;
  };
  const std::vector<Case> cases = {{0, -1, "rank 0 sent -1 as its number of rows"},
                                   {0, int64_t{1} << 60, " as its number of rows"},
                                   {1, 4, "rank 0 sent 4 as the index of a row"},
                                   {1, -3, "rank 0 sent -3 as the index of a row"}};
  for (const Case& wrong : cases) {
    int exchanges = 0;
    auto group = MakeFakeGroup([&](FakeBackend&, OpKind kind, const CallContext& context) {
      if (kind != OpKind::kAllGather) return absl::OkStatus();
      const Tensor& output = context.collective->outputs[0];
      const bool is_of_rows = output.dtype() == DType::kInt64 && output.numel() == 1;
      if (is_of_rows && exchanges++ == wrong.exchange) output.data_as<int64_t>()[0] = wrong.number;
      return absl::OkStatus();
    });
    Reducer::Options options;
    options.names = {"embedding"};
    options.sparse = {0};
    auto reducer = Reducer::Create(group, {Tensor::Zeros(DType::kFloat32, {4, 2})}, options);
    ASSERT_TRUE(reducer.ok()) << reducer.status();
    exchanges = 0;
    std::vector<int64_t> indices = {2};
    const SparseRows rows = {Tensor::Of(indices), Tensor::Zeros(DType::kFloat32, {1, 2})};
    ASSERT_TRUE((*reducer)->MarkReadySparse(0, rows).ok());
    const absl::Status finished = (*reducer)->Finish();
    EXPECT_THAT(std::string(finished.message()), HasSubstr(wrong.text)) << finished;
    EXPECT_THAT(RanksOf(finished), ElementsAre(0)) << finished;
  }
}

TEST(ReducerTest, ABucketCanBeAwaitedBeforeTheStepIsFinished) {
  auto group = MakeFakeGroup(Succeeds());
  auto reducer = MakeReducer(group);
  EXPECT_FALSE(reducer->AwaitBucket(0).value()) << "no step is under way";
  ASSERT_TRUE(reducer->MarkReady(1).ok());
  EXPECT_FALSE(reducer->AwaitBucket(1).value()) << "bucket 0 comes first, and is not ready";
  ASSERT_TRUE(reducer->MarkReady(2).ok());
  EXPECT_TRUE(reducer->AwaitBucket(0).value());
  EXPECT_TRUE(reducer->AwaitBucket(1).value());
  EXPECT_FALSE(reducer->AwaitBucket(2).value());
  EXPECT_FALSE(reducer->AwaitBucket(3).ok()) << "there are three";
  ASSERT_TRUE(reducer->MarkReady(0).ok());
  EXPECT_TRUE(reducer->Finish().ok());
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
    return tensor::FindShared(gradient.data(), gradient.nbytes()).has_value();
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

TEST(ReducerTest, FinishNamesWhatIsMissingAndTheNextStepIsUntouchedByIt) {
  auto reducer = MakeReducer(MakeFakeGroup(Succeeds()));
  ASSERT_TRUE(reducer->MarkReady(1).ok());
  absl::Status status = reducer->Finish();
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 0 produced no gradient for 'first.weight' (index 0), "
                        "'third.weight' (index 2); give every parameter"));
  for (int64_t i : {0, 1, 2}) ASSERT_TRUE(reducer->MarkReady(i).ok());
  EXPECT_TRUE(reducer->Finish().ok());
}

TEST(ReducerTest, MarkingTwiceInAStepIsRefusedAndTheNextStepBeginsAnew) {
  auto reducer = MakeReducer(MakeFakeGroup(Succeeds()));
  for (int step = 0; step < 3; ++step) {
    for (int64_t i : {2, 0, 1}) ASSERT_TRUE(reducer->MarkReady(i).ok());
    EXPECT_THAT(std::string(reducer->MarkReady(0).message()), HasSubstr("twice"));
    ASSERT_TRUE(reducer->Finish().ok());
  }
  EXPECT_EQ(Reductions(), 3 * (3 + 1));
}

TEST(ReducerTest, AFailedReductionIsReportedByFinishAndEndsTheStep) {
  auto group = MakeFakeGroup([](FakeBackend&, OpKind kind, const CallContext&) {
    return kind == OpKind::kAllReduce ? NetworkError("rank 1 is gone") : absl::OkStatus();
  });
  auto reducer = MakeReducer(group);
  for (int64_t i : {2, 1, 0}) (void)reducer->MarkReady(i);
  const absl::Status status = reducer->Finish();
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 is gone"));
  EXPECT_THAT(std::string(reducer->MarkReady(2).message()), HasSubstr("rank 1 is gone"));
}

TEST(ReducerTest, AfterAFailureItGoesOnInAnotherGroup) {
  auto broken = MakeFakeGroup([](FakeBackend&, OpKind kind, const CallContext&) {
    return kind == OpKind::kAllReduce ? NetworkError("rank 1 is gone") : absl::OkStatus();
  });
  auto reducer = MakeReducer(broken);
  (void)reducer->MarkReady(2);
  ASSERT_TRUE(reducer->ReplaceGroup(MakeFakeGroup(Succeeds())).ok());
  EXPECT_EQ(reducer->generation(), 1);
  for (int64_t i : {2, 1, 0}) ASSERT_TRUE(reducer->MarkReady(i).ok());
  EXPECT_TRUE(reducer->Finish().ok());
}

TEST(ReducerTest, AStepIsDroppedEvenIfItsGroupHangs) {
  auto hanging = MakeFakeGroup([](FakeBackend& backend, OpKind kind, const CallContext&) {
    return kind == OpKind::kAllReduce ? backend.WaitForAbort() : absl::OkStatus();
  });
  auto reducer = MakeReducer(hanging);
  const void* before = reducer->gradient(2)->data();
  ASSERT_TRUE(reducer->MarkReady(2).ok());
  ASSERT_TRUE(reducer->ReplaceGroup(MakeFakeGroup(Succeeds())).ok());
  EXPECT_EQ(reducer->generation(), 2) << "the old operation may still write";
  EXPECT_NE(reducer->gradient(2)->data(), before);
  for (int64_t i : {2, 1, 0}) ASSERT_TRUE(reducer->MarkReady(i).ok());
  EXPECT_TRUE(reducer->Finish().ok());
}

TEST(ReducerTest, BucketsAreMadeAnewInTheOrderOfArrivalOnce) {
  auto reducer = MakeReducer(MakeFakeGroup(Succeeds()));
  for (int step = 0; step < 3; ++step) {
    for (int64_t i : {1, 2, 0}) {
      std::vector<float> value(10, i + 10.0f * step);
      ASSERT_TRUE(reducer->CopyReady(i, Tensor::Of(value)).ok());
    }
    ASSERT_TRUE(reducer->Finish().ok());
    EXPECT_THAT(reducer->buckets(), ElementsAre(ElementsAre(1), ElementsAre(2), ElementsAre(0)));
    EXPECT_EQ(reducer->generation(), 2);
    for (int64_t i : {0, 1, 2}) {
      EXPECT_EQ(reducer->gradient(i)->data_as<float>()[9], i + 10.0f * step);
    }
  }
}

TEST(ReducerTest, BucketsAreNotMadeAnewWhereThatIsNotWantedOrChangesNothing) {
  auto options = OnePerBucket();
  options.rebuild = false;
  auto fixed = Reducer::Create(MakeFakeGroup(Succeeds()), ThreeParameters(), options).value();
  for (int64_t i : {1, 2, 0}) ASSERT_TRUE(fixed->MarkReady(i).ok());
  ASSERT_TRUE(fixed->Finish().ok());
  EXPECT_EQ(fixed->generation(), 1);
  auto equal = MakeReducer(MakeFakeGroup(Succeeds()));
  for (int64_t i : {2, 1, 0}) ASSERT_TRUE(equal->MarkReady(i).ok());
  ASSERT_TRUE(equal->Finish().ok());
  EXPECT_EQ(equal->generation(), 1);
}

TEST(ReducerTest, AStepThatKeepsGradientsToItselfCommunicatesNothing) {
  auto reducer = MakeReducer(MakeFakeGroup(Succeeds()));
  Reducer::Step local;
  local.sync = Reducer::Sync::kNone;
  std::vector<float> ones(10, 1);
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(reducer->BeginStep(local).ok());
    for (int64_t i : {2, 0}) ASSERT_TRUE(reducer->CopyReady(i, Tensor::Of(ones)).ok());
    ASSERT_TRUE(reducer->Finish().ok());
  }
  EXPECT_EQ(Reductions(), 0);
  for (int64_t i : {2, 1}) ASSERT_TRUE(reducer->CopyReady(i, Tensor::Of(ones)).ok());
  ASSERT_TRUE(reducer->Finish().ok()) << "parameter 0 has the gradient of earlier steps";
  EXPECT_EQ(reducer->gradient(2)->data_as<float>()[0], 3);
  EXPECT_EQ(reducer->gradient(1)->data_as<float>()[0], 1);
  EXPECT_EQ(reducer->gradient(0)->data_as<float>()[0], 2);
  for (int64_t i : {2, 1, 0}) ASSERT_TRUE(reducer->CopyReady(i, Tensor::Of(ones)).ok());
  ASSERT_TRUE(reducer->Finish().ok());
  EXPECT_EQ(reducer->gradient(2)->data_as<float>()[0], 1) << "a new step starts from nothing";
}

TEST(ReducerTest, ParametersNamedAsUnusedDoNotHoldUpTheirBuckets) {
  auto options = OnePerBucket();
  options.unused = Reducer::Unused::kFound;
  auto reducer = Reducer::Create(MakeFakeGroup(Succeeds()), ThreeParameters(), options).value();
  reducer->gradient(2)->data_as<float>()[0] = 5;
  Reducer::Step step;
  step.unused = {2, 1};
  ASSERT_TRUE(reducer->BeginStep(step).ok());
  EXPECT_TRUE(FakeBackend::Last()->WaitForCalls(1 + 2)) << "the agreement and two buckets";
  ASSERT_TRUE(reducer->MarkReady(0).ok());
  ASSERT_TRUE(reducer->Finish().ok());
  EXPECT_FALSE(*reducer->is_used(2));
  EXPECT_TRUE(*reducer->is_used(0));
  EXPECT_EQ(reducer->gradient(2)->data_as<float>()[0], 0);
}

TEST(ReducerTest, AGradientForAParameterNamedAsUnusedIsAnErrorThere) {
  auto options = OnePerBucket();
  options.unused = Reducer::Unused::kFound;
  auto reducer = Reducer::Create(MakeFakeGroup(Succeeds()), ThreeParameters(), options).value();
  Reducer::Step step;
  step.unused = {2};
  ASSERT_TRUE(reducer->BeginStep(step).ok());
  EXPECT_THAT(std::string(reducer->MarkReady(2).message()), HasSubstr("'third.weight'"));
  const absl::Status status = reducer->Finish();
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("was to have none, for 'third.weight'"));
}

TEST(ReducerTest, StepsAreBegunOneAtATimeAndWithWhatTheReducerAllows) {
  auto reducer = MakeReducer(MakeFakeGroup(Succeeds()));
  Reducer::Step step;
  step.unused = {1};
  EXPECT_THAT(std::string(reducer->BeginStep(step).message()), HasSubstr("find_unused_parameters"));
  step = {};
  step.divisor = -1;
  EXPECT_THAT(std::string(reducer->BeginStep(step).message()), HasSubstr("divisor"));
  ASSERT_TRUE(reducer->BeginStep({}).ok());
  EXPECT_EQ(KindOf(reducer->BeginStep({})), ErrorKind::kArgument);
  EXPECT_EQ(KindOf(reducer->CountActive(Reducer::Activity::kActive).status()),
            ErrorKind::kArgument);
  EXPECT_EQ(KindOf(reducer->is_used(0).status()), ErrorKind::kArgument);
}

TEST(ReducerTest, StatsTellOfEachBucket) {
  auto reducer = MakeReducer(MakeFakeGroup(Succeeds()));
  EXPECT_EQ(reducer->stats().steps, 0);
  for (int64_t i : {2, 0, 1}) ASSERT_TRUE(reducer->MarkReady(i).ok());
  ASSERT_TRUE(reducer->Finish().ok());
  const ReducerStats stats = reducer->stats();
  EXPECT_EQ(stats.steps, 1);
  EXPECT_EQ(stats.hook, "all_reduce");
  EXPECT_THAT(stats.bucket_bytes, ElementsAre(40, 40, 40));
  EXPECT_THAT(stats.bucket_parameters, ElementsAre(1, 1, 1));
  ASSERT_EQ(stats.end.size(), 3);
  for (int b = 0; b < 3; ++b) {
    EXPECT_LE(0, stats.ready[b]);
    EXPECT_LE(stats.ready[b], stats.start[b]);
    EXPECT_LT(stats.start[b], stats.end[b]);
    EXPECT_LE(stats.end[b], stats.step_end);
  }
  EXPECT_GT(stats.own_time, 0);
  EXPECT_LT(stats.own_time, stats.step_end);
}

// Averages nothing; does what the test says.
class FakeHook final : public CommHook {
 public:
  std::string name() const override { return "fake"; }
  absl::Status Attach(std::shared_ptr<ProcessGroup> group) override {
    calls.push_back(absl::StrCat("attach ", group->size()));
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<Work>> Start(std::shared_ptr<GradBucket> bucket) override {
    calls.push_back(absl::StrCat("start ", bucket->index, " of ", bucket->count, ", step ",
                                 bucket->step, ", parameter ", bucket->parameters[0], ", divisor ",
                                 bucket->divisor, bucket->is_last() ? ", last" : ""));
    if (!start_error.ok()) return start_error;
    auto work = std::make_shared<Work>("a fake average");
    work->Start();
    work->Finish(work_error);
    return work;
  }
  void Reset() override { calls.push_back("reset"); }

  absl::Status start_error, work_error;
  std::vector<std::string> calls;
};

TEST(ReducerTest, AHookGetsTheBucketsInOrder) {
  auto hook = std::make_shared<FakeHook>();
  auto options = OnePerBucket();
  options.hook = hook;
  auto reducer = Reducer::Create(MakeFakeGroup(Succeeds()), ThreeParameters(), options).value();
  Reducer::Step step;
  step.divisor = 7;
  ASSERT_TRUE(reducer->BeginStep(step).ok());
  for (int64_t i : {1, 2, 0}) ASSERT_TRUE(reducer->MarkReady(i).ok());
  ASSERT_TRUE(reducer->Finish().ok());
  EXPECT_THAT(hook->calls,
              ElementsAre("attach 1", "start 0 of 3, step 0, parameter 2, divisor 7",
                          "start 1 of 3, step 0, parameter 1, divisor 7",
                          "start 2 of 3, step 0, parameter 0, divisor 7, last", "reset"));
  EXPECT_EQ(reducer->stats().hook, "fake");
  ASSERT_TRUE(reducer->ReplaceGroup(MakeFakeGroup(Succeeds())).ok());
  EXPECT_EQ(hook->calls.back(), "attach 1");
  ASSERT_TRUE(reducer->SetHook(nullptr).ok());
  const size_t before = hook->calls.size();
  for (int64_t i : {1, 2, 0}) ASSERT_TRUE(reducer->MarkReady(i).ok());
  ASSERT_TRUE(reducer->Finish().ok());
  EXPECT_EQ(hook->calls.size(), before);
}

TEST(ReducerTest, AHookThatFailsEndsTheGroupSoThatNobodyWaits) {
  for (const bool at_start : {true, false}) {
    auto hook = std::make_shared<FakeHook>();
    (at_start ? hook->start_error : hook->work_error) = TypeError("no such thing");
    auto group = MakeFakeGroup(Succeeds());
    auto reducer = MakeReducer(group);
    ASSERT_TRUE(reducer->SetHook(hook).ok());
    for (int64_t i : {2, 1, 0}) (void)reducer->MarkReady(i);
    const absl::Status status = reducer->Finish();
    EXPECT_EQ(KindOf(status), ErrorKind::kType);
    EXPECT_THAT(std::string(status.message()), HasSubstr("communication hook 'fake', bucket 0"));
    EXPECT_THAT(std::string(group->status().message()), HasSubstr("no such thing"));
  }
}

TEST(ReducerTest, BadPlansAreRefused) {
  auto group = MakeFakeGroup(Succeeds());
  const auto kind = [&](const std::vector<Tensor>& parameters, const auto& change) {
    Reducer::Options options;
    change(options);
    return KindOf(Reducer::Create(group, parameters, std::move(options)).status());
  };
  using Options = Reducer::Options;
  const auto nothing = [](Options&) {};
  const std::vector<Tensor> three = ThreeParameters();
  EXPECT_EQ(kind({}, nothing), ErrorKind::kArgument);
  EXPECT_EQ(kind({Tensor::Zeros(DType::kBool, {2})}, nothing), ErrorKind::kArgument);
  EXPECT_EQ(kind({Tensor::Zeros(DType::kFloat8E4M3, {2})}, nothing), ErrorKind::kArgument);
  EXPECT_EQ(kind(three, [](Options& o) { o.names = {"only one"}; }), ErrorKind::kArgument);
  EXPECT_EQ(kind(three, [](Options& o) { o.caps.first = 0; }), ErrorKind::kArgument);
  EXPECT_EQ(kind(three, [](Options& o) { o.caps.list = {4, 0}; }), ErrorKind::kArgument);
  EXPECT_EQ(kind(three, [](Options& o) { o.sparse = {3}; }), ErrorKind::kArgument);
  EXPECT_EQ(kind(three, [](Options& o) { o.sparse = {1, 1}; }), ErrorKind::kArgument);
  EXPECT_EQ(kind({Tensor::Zeros(DType::kFloat32, {})}, [](Options& o) { o.sparse = {0}; }),
            ErrorKind::kArgument);
}

TEST(ReducerTest, WhatFailsAtTheEndOfAStepOnThisRankAloneEndsTheGroup) {
  auto group = MakeFakeGroup([](FakeBackend&, OpKind kind, const CallContext&) {
    return kind == OpKind::kBroadcast ? ArgumentError("no room") : absl::OkStatus();
  });
  auto reducer = MakeReducer(group);
  for (int64_t i : {1, 2, 0}) ASSERT_TRUE(reducer->MarkReady(i).ok());
  EXPECT_THAT(std::string(reducer->Finish().message()), HasSubstr("no room"));
  EXPECT_THAT(std::string(group->status().message()), HasSubstr("no room"));
}

// Ends the calls of a DeferredBackend late, those that wait at one time in reverse order, and the
// call with index `failing` with an error.
class LateDevice {
 public:
  explicit LateDevice(std::shared_ptr<DeferredBackend> backend, size_t failing = SIZE_MAX)
      : backend_(std::move(backend)), failing_(failing), thread_([this] { Loop(); }) {}
  ~LateDevice() {
    is_stopping_ = true;
    thread_.join();
  }

 private:
  void Loop() {
    size_t ended = 0;
    while (!is_stopping_) {
      absl::SleepFor(absl::Milliseconds(2));
      const size_t begun = backend_->calls().size();
      for (size_t i = begun; i > ended; --i) {
        const absl::StatusOr<int> failure = NetworkError("rank 1 was lost");
        backend_->Finish(i - 1, i - 1 == failing_ ? failure : 0);
      }
      ended = begun;
    }
  }

  const std::shared_ptr<DeferredBackend> backend_;
  const size_t failing_;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

TEST(ReducerTest, BucketsMayEndLateAndInAnyOrder) {
  const auto group = MakeDeferredGroup();
  const LateDevice device(DeferredBackend::Last());
  const auto reducer = MakeReducer(group);
  for (int step = 0; step < 20; ++step) {
    for (int64_t i : {2, 1, 0}) {
      std::vector<float> value(10, static_cast<float>(step + i));
      ASSERT_TRUE(reducer->CopyReady(i, Tensor::Of(value)).ok());
    }
    const absl::Status status = reducer->Finish();
    ASSERT_TRUE(status.ok()) << status;
    for (int64_t i : {0, 1, 2}) {
      EXPECT_EQ(reducer->gradient(i)->data_as<float>()[9], static_cast<float>(step + i));
    }
  }
}

TEST(ReducerTest, ABucketThatFailsLateFailsItsStep) {
  const auto group = MakeDeferredGroup();
  const auto backend = DeferredBackend::Last();
  size_t before = 0;  // Calls that making a reducer takes.
  {
    const LateDevice device(backend);
    MakeReducer(group);
    before = backend->calls().size();
  }
  const auto other = MakeDeferredGroup();
  const LateDevice device(DeferredBackend::Last(), before + 1);
  const auto reducer = MakeReducer(other);
  absl::Status status;
  for (int64_t i : {2, 1, 0}) status.Update(reducer->MarkReady(i));
  status.Update(reducer->Finish());
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 was lost"));
}

}  // namespace
}  // namespace syncline
