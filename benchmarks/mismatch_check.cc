// What it costs gloo's ranks to compare their calls before they move data. Prints a table.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "syncline/tensor.h"

namespace syncline {
namespace {

using Clock = std::chrono::steady_clock;

struct Case {
  OpKind kind;
  int64_t bytes;  // Of each rank's tensor.
};

struct Loops {
  int rounds;  // Of each setting, in turns.
  int calls;   // In a round, which a barrier ends.
};

Loops LoopsFor(int64_t bytes) { return bytes < 1 << 20 ? Loops{31, 50} : Loops{15, 4}; }

std::string Size(int64_t bytes) {
  if (bytes >= 1 << 20) return absl::StrCat(bytes >> 20, " MiB");
  if (bytes >= 1 << 10) return absl::StrCat(bytes >> 10, " KiB");
  return absl::StrCat(bytes, " B");
}

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// One rank's end of two groups of the same ranks, one of which compares calls.
class Rank {
 public:
  Rank(std::shared_ptr<Store> on, std::shared_ptr<Store> off, int rank, int size)
      : on_(Join(std::move(on), rank, size, MismatchCheck::kOn)),
        off_(Join(std::move(off), rank, size, MismatchCheck::kOff)) {}

  // Microseconds per call, with the check and without.
  struct Times {
    std::vector<double> on, off;
  };

  Times Measure(const Case& what) {
    const Tensor tensor = Tensor::Zeros(DType::kFloat32, {what.bytes / 4});
    const Loops loops = LoopsFor(what.bytes);
    Times times;
    for (int round = -1; round < loops.rounds; ++round) {  // The first is to warm up.
      const double on = Round(*on_, what.kind, tensor, loops.calls);
      const double off = Round(*off_, what.kind, tensor, loops.calls);
      if (round < 0) continue;
      times.on.push_back(on);
      times.off.push_back(off);
    }
    return times;
  }

 private:
  static std::shared_ptr<Backend> Join(std::shared_ptr<Store> store, int rank, int size,
                                       MismatchCheck check) {
    BackendConfig config;
    config.store = std::move(store);
    config.rank = rank;
    config.size = size;
    config.local_address = "127.0.0.1";
    config.mismatch_check = check;
    auto backend = BackendRegistry::Make("gloo", config);
    Require(backend.status());
    return *backend;
  }

  double Round(Backend& backend, OpKind kind, const Tensor& tensor, int calls) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls; ++i) Require(Call(backend, kind, tensor));
    Require(RunAndWait(backend, Collective::Barrier(), NextContext()).status());
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / calls;
  }

  absl::Status Call(Backend& backend, OpKind kind, const Tensor& tensor) {
    switch (kind) {
      case OpKind::kAllReduce:
        return RunAndWait(backend, Collective::AllReduce(tensor, ReduceOp::kSum), NextContext())
            .status();
      case OpKind::kBroadcast:
        return RunAndWait(backend, Collective::Broadcast(tensor, 0), NextContext()).status();
      default:
        return RunAndWait(backend, Collective::Barrier(), NextContext()).status();
    }
  }

  CallContext NextContext() {
    CallContext context;
    context.sequence = sequence_++;
    context.deadline = Deadline(absl::Minutes(1));
    return context;
  }

  const std::shared_ptr<Backend> on_, off_;
  uint64_t sequence_ = 0;
};

// The lower quartile: what else the machine does only ever makes a round slower.
double Typical(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 4, values.end());
  return values[values.size() / 4];
}

void Print(const Case& what, int size, const Rank::Times& times) {
  const double on = Typical(times.on), off = Typical(times.off);
  std::printf("| %s | %s | %d | %.0f | %.0f | %.2f |\n", std::string(Name(what.kind)).c_str(),
              what.bytes > 0 ? Size(what.bytes).c_str() : "-", size, off, on, on / off);
  std::fflush(stdout);
}

void Run(int size, const std::vector<Case>& cases) {
  const auto on = std::make_shared<HashStore>(), off = std::make_shared<HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Rank self(on, off, rank, size);
      for (const Case& what : cases) {
        const Rank::Times times = self.Measure(what);
        if (rank == 0) Print(what, size, times);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace syncline

int main() {
  using syncline::OpKind;
  std::vector<syncline::Case> cases;
  for (OpKind kind : {OpKind::kAllReduce, OpKind::kBroadcast}) {
    for (int64_t bytes : {4, 64 << 10, 16 << 20}) cases.push_back({kind, bytes});
  }
  cases.push_back({OpKind::kBarrier, 0});
  std::printf("| operation | per rank | ranks | off, us | on, us | on / off |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (int size : {2, 4}) syncline::Run(size, cases);
  return 0;
}
