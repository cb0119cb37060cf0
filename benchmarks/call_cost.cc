// What a synchronous call costs beside what ranks wait for each other: that of a group of one.
//
//   ./bazelw run //benchmarks:call_cost [PART_OF_A_NAME]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "syncline/backend_registry.h"
#include "syncline/hash_store.h"
#include "syncline/process_group.h"
#include "syncline/tensor.h"

namespace syncline {
namespace {

using Clock = std::chrono::steady_clock;

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// Nanoseconds, the median of some rounds.
double CostOf(const std::function<absl::Status()>& call) {
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

struct Case {
  std::string name;
  std::function<absl::Status()> of_group;
  std::function<absl::Status(const CallContext&)> of_backend;  // If it has such a call.
};

void Measure(const std::string& part_of_name) {
  ProcessGroup::Options options;
  options.backend = "shm";
  options.store = std::make_shared<HashStore>();
  const auto group = ProcessGroup::Create(options).value();
  BackendConfig config;
  config.store = std::make_shared<HashStore>();
  const auto backend = BackendRegistry::Make("shm", config).value();
  using Context = CallContext;
  const Tensor in = Tensor::Zeros(DType::kFloat32, {1}), out = Tensor::Zeros(DType::kFloat32, {1});
  const std::vector<Tensor> ins = {in}, outs = {out};
  const std::vector<Case> cases = {
      {"barrier", [&] { return group->Barrier(); },
       [&](const Context& context) {
         return RunAndWait(*backend, Collective::Barrier(), context).status();
       }},
      {"broadcast", [&] { return group->Broadcast(out, 0); },
       [&](const Context& context) {
         return RunAndWait(*backend, Collective::Broadcast(out, 0), context).status();
       }},
      {"all_reduce", [&] { return group->AllReduce(out); },
       [&](const Context& context) {
         return RunAndWait(*backend, Collective::AllReduce(out, ReduceOp::kSum), context).status();
       }},
      {"all_gather", [&] { return group->AllGather(outs, in); },
       [&](const Context& context) {
         return RunAndWait(*backend, Collective::AllGather(outs, in), context).status();
       }},
      {"all_gather_single", [&] { return group->AllGatherSingle(out, in); }, nullptr},
      {"reduce_scatter", [&] { return group->ReduceScatter(out, ins); },
       [&](const Context& context) {
         return RunAndWait(*backend, Collective::ReduceScatter(out, ins, ReduceOp::kSum), context)
             .status();
       }},
      {"reduce_scatter_single", [&] { return group->ReduceScatterSingle(out, in); }, nullptr},
      {"all_to_all", [&] { return group->AllToAll(outs, ins); },
       [&](const Context& context) {
         return RunAndWait(*backend, Collective::AllToAll(outs, ins), context).status();
       }},
      {"all_to_all_single", [&] { return group->AllToAllSingle(out, in); }, nullptr},
  };
  std::printf("%-24s %14s %14s\n", "ns per call", "ProcessGroup", "backend shm");
  for (const Case& it : cases) {
    if (it.name.find(part_of_name) == std::string::npos) continue;
    std::printf("%-24s %14.1f", it.name.c_str(), CostOf(it.of_group));
    Context context;
    const auto call = [&] { return ++context.sequence, it.of_backend(context); };
    if (it.of_backend != nullptr) std::printf(" %14.1f", CostOf(call));
    std::printf("\n");
  }
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) { syncline::Measure(argc > 1 ? argv[1] : ""); }
