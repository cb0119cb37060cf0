// What all communication hooks have in common, and hooks of one's own.
#include <cmath>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "ddp/hooks/blocking_hook.h"
#include "ddp/hooks/bucket_averager.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/parameter_averager.h"
#include "syncline/reducer.h"
#include "syncline/status.h"
#include "tests/ddp/comm_hook_ranks.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- All of them ----

TEST(CommHookTest, KnowsItsName) {
  for (const Named& named : AllHooks()) {
    ExpectOk(RunWorld(1, [&](World& world) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(const Hook hook, named.make(world));
      EXPECT_EQ(hook->name(), named.name);
      EXPECT_FALSE(hook->Start(MakeBucket<float>({1}, {{1}})).ok()) << "it has no group yet";
      return absl::OkStatus();
    }));
  }
}

TEST(CommHookTest, IntegersAreAveragedAsTheyAre) {
  for (const Named& named : AllHooks()) {
    Experiment<int32_t> experiment;
    experiment.gradients = [](int64_t rank, int64_t step, int64_t count) {
      return std::vector<int32_t>(static_cast<size_t>(count),
                                  static_cast<int32_t>(6 * (rank + step)));
    };
    for (const auto& result : experiment.Run(named.make)) {
      EXPECT_EQ(result[0] % 3, 0) << named.name;
      EXPECT_EQ(result[30], result[0]) << named.name;
    }
    EXPECT_EQ(experiment.Run(named.make)[2][0], 15) << named.name;
  }
}

TEST(CommHookTest, ForgetsWhatItKeptWhenTheBucketsChange) {
  for (const Named& named : AllHooks()) {
    // Step 2 after a reset is as if it were the first.
    Experiment<float> experiment;
    experiment.shapes = {{12, 12}};
    experiment.steps = 4;
    experiment.reset_at = 2;
    experiment.gradients = [](int64_t rank, int64_t step, int64_t count) {
      return Gradients<float>(rank, step % 2, count);
    };
    if (named.name == "power_sgd" || named.name == "batched_power_sgd") {
      // Begins with other random vectors in each step; with as many as columns, these do not show.
      PowerSgdOptions options = FromTheFirstStep(12);
      options.min_compression_rate = 0.01;
      options.feedback = PowerSgdOptions::Feedback::kError;
      const auto results =
          experiment.Run(named.name == "power_sgd" ? PowerSgdOf(options) : BatchedOf(options));
      for (size_t i = 0; i < 144; ++i) EXPECT_NEAR(results[0][i], results[2][i], 1e-4);
      continue;
    }
    if (named.name == "post_local_sgd") continue;  // Keeps nothing.
    const auto results = experiment.Run(named.make);
    EXPECT_EQ(results[0], results[2]) << named.name;
    EXPECT_EQ(results[1], results[3]) << named.name;
  }
}

TEST(CommHookTest, ManyBucketsInFlightGoInOrder) {
  for (const Named& named : AllHooks()) {
    ExpectOk(RunWorld(3, [&](World& world) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(const Hook hook, named.make(world));
      SYNCLINE_RETURN_IF_ERROR(hook->Attach(world.group()));
      for (int64_t step = 0; step < 3; ++step) {
        std::vector<std::shared_ptr<GradBucket>> buckets;
        std::vector<std::shared_ptr<Work>> works;
        for (int64_t index = 0; index < 10; ++index) {
          // Vectors of one value are exact, or nearly so, however they are compressed.
          const auto value = static_cast<float>((index + 1) * (world.rank() + 1));
          const int64_t count = (index + 1) * (index + 1);
          buckets.push_back(MakeBucket<float>(std::vector<float>(count, value), {{count}}));
          buckets.back()->index = index;
          buckets.back()->count = 10;
          buckets.back()->step = step;
          buckets.back()->divisor = 3;
          SYNCLINE_ASSIGN_OR_RETURN(auto work, hook->Start(buckets.back()));
          works.push_back(work);
        }
        for (int64_t index = 0; index < 10; ++index) {
          SYNCLINE_RETURN_IF_ERROR(works[index]->Wait(absl::Seconds(60)));
          const float result = buckets[index]->buffer.data_as<float>()[0];
          if (named.name != "top_k" || step == 0) {
            EXPECT_NEAR(result, 2.0 * (index + 1), 0.05 * (index + 1)) << named.name;
          }
        }
      }
      return absl::OkStatus();
    }));
  }
}

TEST(CommHookTest, OptionsWithoutMeaningAreRefused) {
  const auto refused = [](const absl::StatusOr<Hook>& hook, const std::string& name) {
    EXPECT_EQ(KindOf(hook.status()), ErrorKind::kArgument);
    EXPECT_THAT(std::string(hook.status().message()), HasSubstr(name));
  };
  PowerSgdOptions options;
  options.rank = 0;
  refused(PowerSgdHook(options), "rank");
  options = {};
  options.start_step = -1;
  refused(BatchedPowerSgdHook(options), "start_step");
  options = {};
  options.min_compression_rate = NAN;
  refused(PowerSgdHook(options), "min_compression_rate");
  options = {};
  options.orthogonalization_epsilon = -1;
  refused(PowerSgdHook(options), "orthogonalization_epsilon");
  refused(TopKHook(0), "fraction");
  refused(TopKHook(1.5), "fraction");
  refused(QuantizePerChannelHook(0), "block_size");
  refused(PostLocalSgdHook(-1), "start_step");
  refused(HalfHook(DType::kFloat32), "float16");
  EXPECT_FALSE(ParameterAverager::Create(nullptr, 1).ok());
}

TEST(CommHookTest, RanksWithDifferentHooksAllLearnOfIt) {
  const auto outcomes = RunWorld(3, [](World& world) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const Hook hook, TopKHook(world.rank() == 2 ? 0.5 : 0.25));
    return hook->Attach(world.group());
  });
  for (const absl::Status& status : outcomes) {
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 0 has top_k(0.25), rank 2 has top_k(0.5)"));
  }
}

TEST(CommHookTest, AveragesTheGradientsOfAReducerWhoseBucketsAreRebuilt) {
  for (const Named& named : AllHooks()) {
    ExpectOk(RunWorld(2, [&](World& world) -> absl::Status {
      const std::vector<Tensor> parameters(4, Tensor::Zeros(DType::kFloat32, {4, 4}));
      Reducer::Options options;
      options.caps = {128, 128};  // Two parameters in a bucket.
      SYNCLINE_ASSIGN_OR_RETURN(options.hook, named.make(world));
      SYNCLINE_ASSIGN_OR_RETURN(auto reducer, Reducer::Create(world.group(), parameters, options));
      for (int step = 0; step < 3; ++step) {
        for (int64_t index : {1, 3, 0, 2}) {  // Not the order of the buckets.
          std::vector<float> values(16, static_cast<float>(world.rank() + 1));
          SYNCLINE_RETURN_IF_ERROR(reducer->CopyReady(index, Tensor::Of(values)));
        }
        SYNCLINE_RETURN_IF_ERROR(reducer->Finish());
        EXPECT_EQ(reducer->generation(), 2) << named.name;
        EXPECT_EQ(reducer->stats().hook, named.name);
        if (named.name == "top_k" || named.name == "batched_power_sgd") continue;  // Not exact.
        for (int64_t index = 0; index < 4; ++index) {
          EXPECT_NEAR(reducer->gradient(index)->data_as<float>()[7], 1.5, 0.01) << named.name;
        }
      }
      return absl::OkStatus();
    }));
  }
}

// ---- One's own ----

// Does what a test says.
class Scripted : public ddp::BucketAverager {
 public:
  using Script = std::function<absl::Status(GradBucket&, ProcessGroup&)>;
  explicit Scripted(Script script) : script_(std::move(script)) {}
  std::string name() const override { return "scripted"; }
  absl::Status Average(GradBucket& bucket, ProcessGroup& group) override {
    return script_(bucket, group);
  }
  void Abort(absl::string_view) override { on_abort(); }

  std::function<void()> on_abort = [] {};

 private:
  const Script script_;
};

Hook MakeScripted(Scripted::Script script) {
  return ddp::MakeBlockingHook(std::make_unique<Scripted>(std::move(script)));
}

TEST(BlockingHookTest, AFailureOnOneRankFailsAllAndIsQuotedUntilItIsAttachedAgain) {
  const auto outcomes = RunWorld(3, [](World& world) -> absl::Status {
    bool fails = world.rank() == 1;
    const Hook hook = MakeScripted([&](GradBucket& bucket, ProcessGroup& group) {
      if (fails) return BackendError("the dog ate it");
      return group.AllReduce(bucket.buffer);
    });
    SYNCLINE_RETURN_IF_ERROR(hook->Attach(world.group()));
    SYNCLINE_ASSIGN_OR_RETURN(auto work, hook->Start(MakeBucket<float>({1}, {{1}})));
    const absl::Status failure = work->Wait(absl::Seconds(60));
    EXPECT_THAT(std::string(failure.message()), HasSubstr("rank 1: the dog ate it"));
    const auto later = hook->Start(MakeBucket<float>({1}, {{1}}));
    EXPECT_THAT(std::string(later.status().message()),
                AllOf(HasSubstr("communication hook 'scripted', bucket 0 of 1"),
                      HasSubstr("the dog ate it")));
    fails = false;
    SYNCLINE_RETURN_IF_ERROR(hook->Attach(world.group()));
    SYNCLINE_ASSIGN_OR_RETURN(work, hook->Start(MakeBucket<float>({1}, {{1}})));
    return work->Wait(absl::Seconds(60));
  });
  ExpectOk(outcomes);
}

TEST(BlockingHookTest, TheReducersGroupIsFreeForOthersMeanwhile) {
  ExpectOk(RunWorld(2, [](World& world) -> absl::Status {
    absl::Notification begun, go_on;
    const Hook hook = MakeScripted([&](GradBucket& bucket, ProcessGroup& group) {
      begun.Notify();
      go_on.WaitForNotification();
      return group.AllReduce(bucket.buffer);
    });
    SYNCLINE_RETURN_IF_ERROR(hook->Attach(world.group()));
    SYNCLINE_ASSIGN_OR_RETURN(auto work, hook->Start(MakeBucket<float>({1}, {{1}})));
    begun.WaitForNotification();
    EXPECT_FALSE(work->IsCompleted());
    EXPECT_THAT(work->description(), HasSubstr("'scripted', bucket 0 of 1"));
    const absl::Status barrier = world.group()->Barrier();
    go_on.Notify();
    SYNCLINE_RETURN_IF_ERROR(work->Wait(absl::Seconds(60)));
    return barrier;
  }));
}

TEST(BlockingHookTest, RanksThatHaveDoneTheirStepsDropItWhileOthersAreStillInTheLast) {
  const auto drop_after_steps = [](World& world) -> absl::Status {
    for (int round = 0; round < 5; ++round) {
      const Hook hook = HalfHook(DType::kBFloat16).value();
      SYNCLINE_RETURN_IF_ERROR(hook->Attach(world.group()));
      const std::vector<float> ones(1 << 18, 1);
      SYNCLINE_ASSIGN_OR_RETURN(auto work, hook->Start(MakeBucket<float>(ones, {{1 << 18}})));
      SYNCLINE_RETURN_IF_ERROR(work->Wait(absl::Seconds(60)));
    }
    return absl::OkStatus();
  };
  for (const char* backend : {"local", "gloo", "shm"}) {
    SCOPED_TRACE(backend);
    ExpectOk(RunWorld(3, drop_after_steps, backend));
  }
}

TEST(BlockingHookTest, ToDropItEndsWhatWaitsForOthers) {
  ExpectOk(RunWorld(2, [](World& world) -> absl::Status {
    Hook hook = MakeScripted([](GradBucket& bucket, ProcessGroup& group) {
      return group.rank() == 0 ? group.AllReduce(bucket.buffer) : absl::OkStatus();
    });
    SYNCLINE_RETURN_IF_ERROR(hook->Attach(world.group()));
    std::vector<std::shared_ptr<Work>> works(2);
    for (auto& work : works) {
      SYNCLINE_ASSIGN_OR_RETURN(work, hook->Start(MakeBucket<float>({1}, {{1}})));
    }
    if (world.rank() == 1) {
      for (auto& work : works) SYNCLINE_RETURN_IF_ERROR(work->Wait(absl::Seconds(60)));
    }
    SYNCLINE_RETURN_IF_ERROR(world.group()->Barrier());
    if (world.rank() == 0) {
      hook = nullptr;
      for (auto& work : works) {
        EXPECT_TRUE(work->IsCompleted());
        EXPECT_THAT(std::string(work->status().message()), HasSubstr("its reducer was dropped"));
      }
    }
    return world.group()->Barrier();
  }));
}

TEST(BlockingHookTest, ToDropItWhenItsLastBucketIsAveragedAbortsNothing) {
  ExpectOk(RunWorld(1, [](World& world) -> absl::Status {
    struct Moments {
      absl::Notification observed, notified, go_on;
    };
    const auto moments = std::make_shared<Moments>();
    auto averager = std::make_unique<Scripted>([moments](GradBucket&, ProcessGroup&) {
      moments->observed.WaitForNotification();
      return absl::OkStatus();
    });
    bool is_aborted = false;
    averager->on_abort = [&] { is_aborted = true; };
    Hook hook = ddp::MakeBlockingHook(std::move(averager));
    SYNCLINE_RETURN_IF_ERROR(hook->Attach(world.group()));
    SYNCLINE_ASSIGN_OR_RETURN(auto work, hook->Start(MakeBucket<float>({1}, {{1}})));
    work->OnComplete([moments](const absl::Status&) {
      moments->notified.Notify();
      moments->go_on.WaitForNotification();
    });
    moments->observed.Notify();
    moments->notified.WaitForNotification();  // The hook's thread is still at it.
    hook = nullptr;
    EXPECT_FALSE(is_aborted);
    moments->go_on.Notify();
    return absl::OkStatus();
  }));
}

TEST(BlockingHookTest, AnExceptionIsAnErrorOnAllRanks) {
  ExpectOk(RunWorld(2, [](World& world) -> absl::Status {
    const Hook hook = MakeScripted([](GradBucket& bucket, ProcessGroup& group) {
      if (group.rank() == 0) throw std::bad_alloc();
      return group.AllReduce(bucket.buffer);
    });
    SYNCLINE_RETURN_IF_ERROR(hook->Attach(world.group()));
    SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<Work> work,
                              hook->Start(MakeBucket<float>({1}, {{1}})));
    EXPECT_THAT(std::string(work->Wait(absl::Seconds(60)).message()),
                AllOf(HasSubstr("rank 0"), HasSubstr("out of memory")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace syncline
