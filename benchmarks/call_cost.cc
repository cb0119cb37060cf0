// What a synchronous call costs beside what ranks wait for each other: that of a group of one.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/backend_registry.h"
#include "core/process_group.h"
#include "core/tensor.h"
#include "store/hash_store.h"

namespace syncline {
namespace {

using Clock = std::chrono::steady_clock;

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// Nanoseconds, the median of some rounds.
template <typename Call>
double CostOf(const Call& call) {
  constexpr int kRounds = 51, kCalls = 20000;
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) Require(call());
    const std::chrono::duration<double, std::nano> taken = Clock::now() - begin;
    rounds.push_back(taken.count() / kCalls);
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

void Measure() {
  ProcessGroup::Options options;
  options.backend = "shm";
  options.store = std::make_shared<HashStore>();
  const auto group = ProcessGroup::Create(options).value();
  BackendConfig config;
  config.store = std::make_shared<HashStore>();
  const auto backend = BackendRegistry::Make("shm", config).value();
  const Tensor tensor = Tensor::Zeros(DType::kFloat32, {1});
  CallContext context;
  std::printf("nanoseconds per call: ProcessGroup, backend shm alone\n");
  std::printf("barrier     %6.1f %6.1f\n", CostOf([&] { return group->Barrier(); }),
              CostOf([&] { return ++context.sequence, backend->Barrier(context); }));
  std::printf("all_reduce  %6.1f %6.1f\n", CostOf([&] { return group->AllReduce(tensor); }),
              CostOf([&] {
                return ++context.sequence, backend->AllReduce(tensor, ReduceOp::kSum, context);
              }));
  std::printf("broadcast   %6.1f %6.1f\n", CostOf([&] { return group->Broadcast(tensor, 0); }),
              CostOf([&] { return ++context.sequence, backend->Broadcast(tensor, 0, context); }));
}

}  // namespace
}  // namespace syncline

int main() { syncline::Measure(); }
