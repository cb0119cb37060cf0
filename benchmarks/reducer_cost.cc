// What the reducer itself costs: for each gradient, and for each step. One rank, so that almost
// nothing is communicated.
//
//   ./bazelw run //benchmarks:reducer_cost
#include <cstdint>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "syncline/hash_store.h"
#include "syncline/process_group.h"
#include "syncline/reducer.h"
#include "syncline/tensor.h"

namespace syncline {
namespace {

std::shared_ptr<Reducer> MakeReducer(int64_t parameters, int64_t elements, int64_t per_bucket) {
  ProcessGroup::Options options;
  options.backend = "local";
  options.store = std::make_shared<HashStore>();
  const std::vector<Tensor> model(parameters, Tensor::Zeros(DType::kFloat32, {elements}));
  Reducer::Options plan;
  plan.caps.list = {4 * elements * per_bucket};
  return Reducer::Create(ProcessGroup::Create(options).value(), model, plan).value();
}

void Report(benchmark::State& state, const Reducer& reducer) {
  state.counters["own_us"] = static_cast<double>(reducer.stats().own_time) / 1e3;
  state.counters["buckets"] = static_cast<double>(reducer.buckets().size());
}

// A step of state.range(0) parameters, state.range(1) to a bucket.
void Step(benchmark::State& state) {
  const int64_t parameters = state.range(0);
  const auto reducer = MakeReducer(parameters, 16, state.range(1));
  for (auto _ : state) {
    for (int64_t i = parameters - 1; i >= 0; --i) (void)reducer->MarkReady(i);
    (void)reducer->Finish();
  }
  Report(state, *reducer);
}
BENCHMARK(Step)
    ->Args({1000, 1000})
    ->Args({1000, 50})
    ->Args({1000, 1})
    ->Args({10, 10})
    ->UseRealTime();

// MarkReady of gradients that complete no bucket.
void MarkReady(benchmark::State& state) {
  constexpr int64_t kParameters = 1000;
  const auto reducer = MakeReducer(kParameters, 16, kParameters);
  for (auto _ : state) {
    for (int64_t i = 1; i < kParameters; ++i) (void)reducer->MarkReady(i);
    state.PauseTiming();
    (void)reducer->MarkReady(0);
    (void)reducer->Finish();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * (kParameters - 1));
}
BENCHMARK(MarkReady);

}  // namespace
}  // namespace syncline

BENCHMARK_MAIN();
