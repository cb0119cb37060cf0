// Communication hooks over backend "local", ranks as threads: what each leaves in the buckets,
// against the definition in float64.
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "core/status.h"
#include "core/subgroups.h"
#include "core/world.h"
#include "ddp/comm_hook.h"
#include "ddp/hooks/all_reduce_hook.h"
#include "ddp/hooks/blocking_hook.h"
#include "ddp/hooks/half_hook.h"
#include "ddp/hooks/parameter_averager.h"
#include "ddp/hooks/post_local_sgd_hook.h"
#include "ddp/hooks/power_sgd_hook.h"
#include "ddp/hooks/quantize_hook.h"
#include "ddp/hooks/top_k_hook.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/hash_store.h"
#include "tests/ranks.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Hook = std::shared_ptr<CommHook>;
using MakeHook = std::function<absl::StatusOr<Hook>(World& world)>;
using Shapes = std::vector<std::vector<int64_t>>;

// Runs `body` on `size` ranks that have joined; nobody leaves before all are done.
std::vector<absl::Status> RunWorld(int size, const std::function<absl::Status(World&)>& body) {
  auto store = std::make_shared<HashStore>();
  std::vector<std::shared_ptr<World>> worlds(size);
  return RunRanks(size, [&](int rank) -> absl::Status {
    WorldOptions options;
    options.backend = "local";
    options.store = store;
    options.rank = rank;
    options.size = size;
    options.timeout = absl::Seconds(60);
    SYNCLINE_ASSIGN_OR_RETURN(worlds[rank], World::Init(options));
    return body(*worlds[rank]);
  });
}

void ExpectOk(const std::vector<absl::Status>& outcomes) {
  for (const absl::Status& status : outcomes) EXPECT_TRUE(status.ok()) << status;
}

template <typename T>
std::vector<T> Gradients(int64_t rank, int64_t step, int64_t count) {
  std::mt19937_64 random(static_cast<uint64_t>(rank * 1000 + step + 1));
  std::normal_distribution<double> normal;
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) value = static_cast<T>(normal(random));
  return values;
}

int64_t CountOf(const Shapes& shapes) {
  int64_t total = 0;
  for (const auto& shape : shapes) {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    total += count;
  }
  return total;
}

// A bucket of `values`, which holds them.
template <typename T>
std::shared_ptr<GradBucket> MakeBucket(const std::vector<T>& values, const Shapes& shapes) {
  auto bucket = std::make_shared<GradBucket>();
  bucket->buffer = Tensor::Zeros(DTypeOf<T>::value, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), bucket->buffer.data_as<T>());
  int64_t begin = 0;
  for (const auto& shape : shapes) {
    const int64_t count = CountOf({shape});
    bucket->gradients.push_back(bucket->buffer.Slice(begin, count).Reshape(shape));
    bucket->parameters.push_back(static_cast<int64_t>(bucket->parameters.size()));
    begin += count;
  }
  return bucket;
}

template <typename T>
struct Experiment {
  int size = 2;
  Shapes shapes = {{31}};
  int64_t steps = 3;
  int64_t divisor = 0;    // 0: the number of ranks.
  int64_t reset_at = -1;  // The step before which the buckets change.
  std::function<std::vector<T>(int64_t rank, int64_t step, int64_t count)> gradients = Gradients<T>;

  std::vector<T> Input(int64_t rank, int64_t step) const {
    return gradients(rank, step, CountOf(shapes));
  }
  double DivisorOf() const { return divisor == 0 ? size : static_cast<double>(divisor); }

  // The average, in float64.
  std::vector<double> Expected(int64_t step) const {
    std::vector<double> sum(static_cast<size_t>(CountOf(shapes)));
    for (int64_t rank = 0; rank < size; ++rank) {
      const std::vector<T> mine = Input(rank, step);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += mine[i];
    }
    for (double& value : sum) value /= DivisorOf();
    return sum;
  }

  // What each step leaves, by step, on each rank.
  std::vector<std::vector<std::vector<T>>> RunOnAll(const MakeHook& make) const {
    std::vector<std::vector<std::vector<T>>> results(size);
    ExpectOk(RunWorld(size, [&](World& world) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(const Hook hook, make(world));
      SYNCLINE_RETURN_IF_ERROR(hook->Attach(world.group()));
      for (int64_t step = 0; step < steps; ++step) {
        if (step == reset_at) hook->Reset();
        auto bucket = MakeBucket(Input(world.rank(), step), shapes);
        bucket->step = step;
        bucket->divisor = divisor == 0 ? size : divisor;
        SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<Work> work, hook->Start(bucket));
        SYNCLINE_RETURN_IF_ERROR(work->Wait(absl::Seconds(60)));
        const T* const data = bucket->buffer.template data_as<T>();
        results[world.rank()].emplace_back(data, data + bucket->buffer.numel());
      }
      return absl::OkStatus();
    }));
    return results;
  }

  // The same, which must be bitwise equal on all ranks.
  std::vector<std::vector<T>> Run(const MakeHook& make) const {
    const auto results = RunOnAll(make);
    for (const auto& of_rank : results) {
      EXPECT_EQ(of_rank.size(), static_cast<size_t>(steps));
      for (size_t step = 0; step < of_rank.size(); ++step) {
        const auto& mine = of_rank[step];
        const auto& first = results[0][step];
        EXPECT_TRUE(mine.empty() ||
                    std::memcmp(mine.data(), first.data(), mine.size() * sizeof(T)) == 0)
            << "ranks differ in step " << step;
      }
    }
    return results[0];
  }

  // Every element of every step is within bound(its expected value).
  void ExpectAverages(const MakeHook& make, const std::function<double(double)>& bound) const {
    const auto results = Run(make);
    for (size_t step = 0; step < results.size(); ++step) {
      const std::vector<double> expected = Expected(static_cast<int64_t>(step));
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(results[step][i], expected[i], bound(expected[i]))
            << "step " << step << ", element " << i << ", " << size << " ranks";
      }
    }
  }
};

const MakeHook kAllReduce = [](World&) { return AllReduceHook(); };
const MakeHook kFloat16 = [](World&) { return HalfHook(DType::kFloat16); };
const MakeHook kBFloat16 = [](World&) { return HalfHook(DType::kBFloat16); };
const MakeHook kPerTensor = [](World&) { return QuantizePerTensorHook(); };
const MakeHook kPerChannel = [](World&) { return QuantizePerChannelHook(8); };

MakeHook PowerSgdOf(const PowerSgdOptions& options) {
  return [=](World&) { return PowerSgdHook(options); };
}
MakeHook BatchedOf(const PowerSgdOptions& options) {
  return [=](World&) { return BatchedPowerSgdHook(options); };
}
MakeHook TopKOf(double fraction) {
  return [=](World&) { return TopKHook(fraction); };
}

PowerSgdOptions FromTheFirstStep(int64_t rank = 1) {
  PowerSgdOptions options;
  options.start_step = 0;
  options.rank = rank;
  return options;
}

// Hooks with a name, for tests that all must pass.
struct Named {
  std::string name;
  MakeHook make;
};
std::vector<Named> AllHooks() {
  return {{"all_reduce", kAllReduce},
          {"float16_compress", kFloat16},
          {"bfloat16_compress", kBFloat16},
          {"quantize_per_tensor", kPerTensor},
          {"quantize_per_channel", kPerChannel},
          {"power_sgd", PowerSgdOf(FromTheFirstStep())},
          {"batched_power_sgd", BatchedOf(FromTheFirstStep())},
          {"top_k", TopKOf(0.1)},
          {"post_local_sgd", [](World&) { return PostLocalSgdHook(1); }}};
}

template <typename T>
class CommHooksTest : public ::testing::Test {
 protected:
  // On 1, 2, 3 ranks, sizes that are empty, odd, large, and divisors that are not the size.
  static std::vector<Experiment<T>> Experiments() {
    std::vector<Experiment<T>> all;
    for (int size : {1, 2, 3}) {
      for (int64_t count : {0, 1, 17, 5000}) {
        Experiment<T> one;
        one.size = size;
        one.shapes = {{count}};
        all.push_back(one);
      }
      all.back().divisor = 5;
    }
    return all;
  }
};
using Floats = ::testing::Types<float, double>;
TYPED_TEST_SUITE(CommHooksTest, Floats);

TYPED_TEST(CommHooksTest, AllReduceAverages) {
  for (const auto& experiment : this->Experiments()) {
    experiment.ExpectAverages(kAllReduce, [](double) { return 1e-6; });
  }
}

TYPED_TEST(CommHooksTest, SixteenBitsAverageUpToTheirPrecision) {
  for (const auto& experiment : this->Experiments()) {
    // Each rank's element is rounded, and each sum; elements are at most 5 or so.
    const double terms = 2.0 * experiment.size;
    experiment.ExpectAverages(kFloat16, [=](double) { return terms * 5 * 0x1p-11; });
    experiment.ExpectAverages(kBFloat16, [=](double) { return terms * 5 * 0x1p-8; });
  }
}

TYPED_TEST(CommHooksTest, EightBitsAverageUpToTheScale) {
  for (const auto& experiment : this->Experiments()) {
    const double scale = 10.0 / 255 * experiment.size / experiment.DivisorOf();
    experiment.ExpectAverages(kPerTensor, [=](double) { return scale; });
    experiment.ExpectAverages(kPerChannel, [=](double) { return scale; });
  }
}

TYPED_TEST(CommHooksTest, BlocksOfTheirOwnScaleAreMoreExact) {
  Experiment<TypeParam> experiment;
  experiment.shapes = {{16}};
  experiment.gradients = [](int64_t rank, int64_t step, int64_t count) {
    auto values = Gradients<TypeParam>(rank, step, count);
    for (int64_t i = 0; i < 8; ++i) values[i] *= TypeParam(1e-4);
    return values;
  };
  const auto results = experiment.Run(kPerChannel);
  for (size_t step = 0; step < results.size(); ++step) {
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(results[step][i], experiment.Expected(step)[i], 1e-4 * 10.0 / 255);
    }
  }
}

TYPED_TEST(CommHooksTest, TopKWithAllElementsIsExact) {
  for (const auto& experiment : this->Experiments()) {
    experiment.ExpectAverages(TopKOf(1), [](double) { return 1e-6; });
  }
}

TYPED_TEST(CommHooksTest, WhatTopKLeavesOutComesLater) {
  for (int size : {1, 2, 3}) {
    Experiment<TypeParam> experiment;
    experiment.size = size;
    experiment.shapes = {{1001}};
    experiment.steps = 60;
    // After the first step there is nothing new: what remains is sent, the largest first.
    experiment.gradients = [](int64_t rank, int64_t step, int64_t count) {
      return step == 0 ? Gradients<TypeParam>(rank, 0, count) : std::vector<TypeParam>(count);
    };
    const auto results = experiment.Run(TopKOf(0.02));
    EXPECT_LE(std::count_if(results[0].begin(), results[0].end(), [](double x) { return x != 0; }),
              21 * size);
    std::vector<double> sum(1001);
    for (const auto& result : results) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += result[i];
    }
    const auto expected = experiment.Expected(0);
    for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], expected[i], 1e-5) << i;
  }
}

// ---- PowerSGD ----

// The outer product of two vectors, the second one different on each rank.
template <typename T>
std::vector<T> RankOne(int64_t rank, int64_t step, int64_t rows, int64_t cols) {
  const auto a = Gradients<T>(100, step, rows), b = Gradients<T>(rank, step, cols);
  std::vector<T> values;
  for (T left : a) {
    for (T right : b) values.push_back(left * right);
  }
  return values;
}

TYPED_TEST(CommHooksTest, PowerSgdIsExactForAGradientOfItsRank) {
  for (int size : {1, 2, 3}) {
    Experiment<TypeParam> experiment;
    experiment.size = size;
    experiment.shapes = {{20, 4, 7}, {11}};
    experiment.divisor = 4;
    experiment.gradients = [](int64_t rank, int64_t step, int64_t) {
      auto values = RankOne<TypeParam>(rank, step, 20, 28);
      const auto rest = Gradients<TypeParam>(rank, step + 500, 11);
      values.insert(values.end(), rest.begin(), rest.end());
      return values;
    };
    // Digits are lost where the last step's vector was nearly orthogonal to this one's.
    const auto bound = [](double) { return sizeof(TypeParam) == 4 ? 1e-3 : 1e-12; };
    experiment.ExpectAverages(PowerSgdOf(FromTheFirstStep()), bound);
    experiment.ExpectAverages(PowerSgdOf(FromTheFirstStep(2)), bound);
  }
}

TYPED_TEST(CommHooksTest, BatchedPowerSgdIsExactForAGradientOfItsRank) {
  Experiment<TypeParam> experiment;
  experiment.shapes = {{100}, {44}};
  experiment.gradients = [](int64_t rank, int64_t step, int64_t) {
    return RankOne<TypeParam>(rank, step, 12, 12);
  };
  experiment.ExpectAverages(BatchedOf(FromTheFirstStep()), [](double) { return 1e-5; });
}

TYPED_TEST(CommHooksTest, PowerSgdOfFullRankIsExact) {
  PowerSgdOptions options = FromTheFirstStep(6);
  options.min_compression_rate = 0.1;
  for (const auto& shapes : {Shapes{{6, 9}}, Shapes{{9, 6}}, Shapes{{1, 5}}, Shapes{{5, 1}}}) {
    Experiment<TypeParam> experiment;
    experiment.shapes = shapes;
    experiment.ExpectAverages(PowerSgdOf(options), [](double) { return 1e-4; });
  }
}

TYPED_TEST(CommHooksTest, PowerSgdAveragesExactlyBeforeItsStartAndWhatIsNotWorthIt) {
  for (const auto& experiment : this->Experiments()) {
    PowerSgdOptions late;
    late.start_step = 3;
    experiment.ExpectAverages(PowerSgdOf(late), [](double) { return 1e-6; });
    experiment.ExpectAverages(BatchedOf(late), [](double) { return 1e-6; });
    experiment.ExpectAverages(PowerSgdOf(FromTheFirstStep()), [](double) { return 1e-6; });
  }
  Experiment<TypeParam> small;
  small.shapes = {{4, 4}};  // 8 of 16 elements: not less than half.
  small.ExpectAverages(PowerSgdOf(FromTheFirstStep()), [](double) { return 1e-6; });
}

// How far the sum of the results is from that of the averages, as a share of one average.
template <typename T>
double RemainingError(const Experiment<T>& experiment, const MakeHook& make) {
  std::vector<double> sum(static_cast<size_t>(CountOf(experiment.shapes)));
  const auto results = experiment.Run(make);
  double of_one = 0;
  for (int64_t step = 0; step < experiment.steps; ++step) {
    const auto expected = experiment.Expected(step);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += results[step][i] - expected[i];
    of_one = 0;
    for (double value : expected) of_one += value * value;
  }
  double error = 0;
  for (double value : sum) error += value * value;
  return std::sqrt(error / of_one);
}

// The same gradients in every step, as in Vogels et al., appendix: what was lost comes later.
template <typename T>
Experiment<T> SteadyExperiment(int size) {
  Experiment<T> experiment;
  experiment.size = size;
  experiment.shapes = {{16, 16}};
  experiment.steps = 200;
  experiment.gradients = [](int64_t rank, int64_t, int64_t count) {
    return Gradients<T>(rank, 0, count);
  };
  return experiment;
}

TYPED_TEST(CommHooksTest, WithErrorFeedbackPowerSgdLosesNothingInTheLongRun) {
  for (int size : {1, 2}) {
    auto experiment = SteadyExperiment<TypeParam>(size);
    PowerSgdOptions none = FromTheFirstStep();
    none.feedback = PowerSgdOptions::Feedback::kNone;
    for (const auto& make_of : {PowerSgdOf, BatchedOf}) {
      // The error of 200 steps is that of some, not of 200.
      EXPECT_LT(RemainingError(experiment, make_of(FromTheFirstStep())), 20);
      EXPECT_GT(RemainingError(experiment, make_of(none)), 100);
    }
  }
}

TYPED_TEST(CommHooksTest, AWarmStartFindsTheBestApproximation) {
  // Vogels et al., section 3: repeated steps are power iteration.
  auto experiment = SteadyExperiment<TypeParam>(2);
  const auto average = experiment.Expected(0);
  const auto error_of = [&](const std::vector<TypeParam>& result) {
    double error = 0;
    for (size_t i = 0; i < average.size(); ++i) error += std::pow(result[i] - average[i], 2);
    return error;
  };
  PowerSgdOptions options = FromTheFirstStep();
  options.feedback = PowerSgdOptions::Feedback::kNone;
  const auto warm = experiment.Run(PowerSgdOf(options));
  EXPECT_LT(error_of(warm.back()), 0.95 * error_of(warm.front()));
  options.start = PowerSgdOptions::Start::kRandom;
  const auto random = experiment.Run(PowerSgdOf(options));
  EXPECT_GT(error_of(random.back()), 1.02 * error_of(warm.back()));
  EXPECT_NE(random[0], random[1]);
}

TYPED_TEST(CommHooksTest, PowerSgdRecoversFromZerosAndFromWhatIsNotFinite) {
  Experiment<TypeParam> experiment;
  experiment.shapes = {{12, 12}};
  experiment.steps = 4;
  experiment.gradients = [](int64_t rank, int64_t step, int64_t) {
    if (step == 0) return std::vector<TypeParam>(144);
    auto values = RankOne<TypeParam>(rank, step, 12, 12);
    if (step == 1 && rank == 0) values[5] = INFINITY;
    return values;
  };
  for (const auto& make_of : {PowerSgdOf, BatchedOf}) {
    const auto results = experiment.Run(make_of(FromTheFirstStep()));
    EXPECT_EQ(results[0], std::vector<TypeParam>(144));
    EXPECT_FALSE(std::isfinite(results[1][5]));
    for (size_t i = 0; i < 144; ++i) EXPECT_NEAR(results[2][i], experiment.Expected(2)[i], 1e-5);
    for (size_t i = 0; i < 144; ++i) EXPECT_NEAR(results[3][i], experiment.Expected(3)[i], 1e-5);
  }
}

// ---- Local SGD ----

TYPED_TEST(CommHooksTest, PostLocalSgdAveragesOverAllAndThenOverTheSubgroup) {
  Experiment<TypeParam> experiment;
  experiment.size = 3;
  experiment.steps = 2;
  const auto results = experiment.RunOnAll([](World& world) -> absl::StatusOr<Hook> {
    SYNCLINE_ASSIGN_OR_RETURN(auto subgroup, Split(*world.group(), {{0, 2}, {1}}));
    return PostLocalSgdHook(1, subgroup);
  });
  for (int rank = 0; rank < 3; ++rank) {
    for (size_t i = 0; i < 31; ++i) {
      EXPECT_NEAR(results[rank][0][i], experiment.Expected(0)[i], 1e-6);
      const double both =
          (double{experiment.Input(0, 1)[i]} + double{experiment.Input(2, 1)[i]}) / 2;
      EXPECT_NEAR(results[rank][1][i], rank == 1 ? experiment.Input(1, 1)[i] : both, 1e-6);
    }
  }
}

TYPED_TEST(CommHooksTest, WithoutASubgroupItIsThatOfTheHost) {
  Experiment<TypeParam> experiment;
  experiment.ExpectAverages([](World&) { return PostLocalSgdHook(1); },
                            [](double) { return 1e-6; });
}

TEST(ParameterAveragerTest, AveragesEveryTypeInEveryPeriod) {
  ExpectOk(RunWorld(3, [](World& world) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto averager, ParameterAverager::Create(world.group(), 2, 3));
    std::string done;
    for (int step = 0; step < 8; ++step) {
      std::vector<float> a(5, static_cast<float>(world.rank()));
      std::vector<double> b(3, 10.0 * world.rank());
      std::vector<float> c(1, static_cast<float>(world.rank() + 1));
      SYNCLINE_ASSIGN_OR_RETURN(const bool averaged,
                                averager->Average({Tensor::Of(a), Tensor::Of(b), Tensor::Of(c)}));
      done += averaged ? '1' : '0';
      EXPECT_EQ(a[4], averaged ? 1 : world.rank());
      EXPECT_EQ(b[2], averaged ? 10 : 10 * world.rank());
      EXPECT_EQ(c[0], averaged ? 2 : world.rank() + 1);
    }
    EXPECT_EQ(done, "00010101");
    return absl::OkStatus();
  }));
}

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

// ---- One's own ----

// Does what a test says.
class Scripted : public BucketAverager {
 public:
  using Script = std::function<absl::Status(GradBucket&, ProcessGroup&)>;
  explicit Scripted(Script script) : script_(std::move(script)) {}
  std::string name() const override { return "scripted"; }
  absl::Status Average(GradBucket& bucket, ProcessGroup& group) override {
    return script_(bucket, group);
  }

 private:
  const Script script_;
};

Hook MakeScripted(Scripted::Script script) {
  return MakeBlockingHook(std::make_unique<Scripted>(std::move(script)));
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

}  // namespace
}  // namespace syncline
