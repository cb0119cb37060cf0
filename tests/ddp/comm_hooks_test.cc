// What each communication hook leaves in the buckets, against the definition in float64.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/parameter_averager.h"
#include "syncline/status.h"
#include "syncline/subgroups.h"
#include "tests/ddp/comm_hook_ranks.h"

namespace syncline {
namespace {

template <typename T>
class CommHooksTest : public ::testing::Test {
 protected:
  // On 1, 2, 3 and 7 ranks, sizes that are empty, odd, large, and divisors that are not the size.
  static std::vector<Experiment<T>> Experiments() {
    std::vector<Experiment<T>> all;
    for (int size : {1, 2, 3, 7}) {
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

TEST(PowerSgdTest, EveryBitOfTheSeedCounts) {
  Experiment<float> experiment;
  experiment.shapes = {{12, 12}};
  experiment.steps = 1;
  PowerSgdOptions options = FromTheFirstStep();
  const auto of_zero = experiment.Run(PowerSgdOf(options));
  options.seed = int64_t{1} << 32;
  EXPECT_NE(experiment.Run(PowerSgdOf(options)), of_zero);
}

}  // namespace
}  // namespace syncline
