// Ranks, as threads, that average buckets by a communication hook: what tests of hooks share.
#ifndef SYNCLINE_TESTS_DDP_COMM_HOOK_RANKS_H_
#define SYNCLINE_TESTS_DDP_COMM_HOOK_RANKS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "syncline/comm_hook.h"
#include "syncline/hash_store.h"
#include "syncline/hooks.h"
#include "syncline/status.h"
#include "syncline/world.h"
#include "tests/support/ranks.h"

namespace syncline {

using Hook = std::shared_ptr<CommHook>;
using MakeHook = std::function<absl::StatusOr<Hook>(World& world)>;
using Shapes = std::vector<std::vector<int64_t>>;

// Runs `body` on `size` ranks that have joined; nobody leaves before all are done.
inline std::vector<absl::Status> RunWorld(int size, const std::function<absl::Status(World&)>& body,
                                          const std::string& backend = "local") {
  auto store = std::make_shared<HashStore>();
  std::vector<std::shared_ptr<World>> worlds(size);
  return RunRanks(size, [&](int rank) -> absl::Status {
    WorldOptions options;
    options.backend = backend;
    options.store = store;
    options.rank = rank;
    options.size = size;
    options.timeout = absl::Seconds(60);
    SYNCLINE_ASSIGN_OR_RETURN(worlds[rank], World::Init(options));
    return body(*worlds[rank]);
  });
}

inline void ExpectOk(const std::vector<absl::Status>& outcomes) {
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

inline int64_t CountOf(const Shapes& shapes) {
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

inline const MakeHook kAllReduce = [](World&) { return AllReduceHook(); };
inline const MakeHook kFloat16 = [](World&) { return HalfHook(DType::kFloat16); };
inline const MakeHook kBFloat16 = [](World&) { return HalfHook(DType::kBFloat16); };
inline const MakeHook kPerTensor = [](World&) { return QuantizePerTensorHook(); };
inline const MakeHook kPerChannel = [](World&) { return QuantizePerChannelHook(8); };

inline MakeHook PowerSgdOf(const PowerSgdOptions& options) {
  return [=](World&) { return PowerSgdHook(options); };
}
inline MakeHook BatchedOf(const PowerSgdOptions& options) {
  return [=](World&) { return BatchedPowerSgdHook(options); };
}
inline MakeHook TopKOf(double fraction) {
  return [=](World&) { return TopKHook(fraction); };
}

inline PowerSgdOptions FromTheFirstStep(int64_t rank = 1) {
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
inline std::vector<Named> AllHooks() {
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

}  // namespace syncline

#endif  // SYNCLINE_TESTS_DDP_COMM_HOOK_RANKS_H_
