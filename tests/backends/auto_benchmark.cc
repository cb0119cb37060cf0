// Backends auto and tcp beside backend gloo, over two hosts. Prints a table. Arguments: an
// operation, or "all"; and the ranks of each host, of which there are two if there is no such
// argument.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "syncline/backend.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "tests/backends/auto_workers.h"

namespace syncline {
namespace {

using Clock = std::chrono::steady_clock;

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

std::string Size(int64_t bytes) {
  if (bytes >= 1 << 20) return absl::StrCat(bytes >> 20, " MiB");
  if (bytes >= 1 << 10) return absl::StrCat(bytes >> 10, " KiB");
  return absl::StrCat(bytes, " B");
}

// Microseconds.
struct Cost {
  double time;  // From beginning to end.
  double work;  // Of the cores, for this process.
};

double WorkSoFar() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec * 1e6 + usage.ru_utime.tv_usec + usage.ru_stime.tv_sec * 1e6 +
         usage.ru_stime.tv_usec;
}

// The size of a call is that of its tensor; of all_gather and reduce_scatter, of all parts.
class Rank {
 public:
  Rank(const Worker& worker, const std::string& backend)
      : rank_(worker.rank), size_(worker.size), backend_(Join(worker, backend)) {}

  // Per call.
  Cost Round(OpKind kind, const Tensor& tensor, int calls) {
    Require(RunAndWait(*backend_, Collective::Barrier(), Next()).status());
    const Clock::time_point start = Clock::now();
    const double work = WorkSoFar();
    for (int i = 0; i < calls; ++i) Require(Call(kind, tensor));
    Require(RunAndWait(*backend_, Collective::Barrier(), Next()).status());
    return {std::chrono::duration<double, std::micro>(Clock::now() - start).count() / calls,
            (WorkSoFar() - work) / calls};
  }

 private:
  static std::shared_ptr<Backend> Join(const Worker& worker, const std::string& backend) {
    auto made = worker.Join(backend, backend);
    Require(made.status());
    return *made;
  }

  absl::Status Call(OpKind kind, const Tensor& tensor) {
    std::vector<Tensor> parts;
    const int64_t each = std::max<int64_t>(tensor.numel() / size_, 1);
    for (int r = 0; r < size_; ++r) parts.push_back(tensor.Slice(r * each % tensor.numel(), each));
    switch (kind) {
      case OpKind::kAllReduce:
        return RunAndWait(*backend_, Collective::AllReduce(tensor, ReduceOp::kSum), Next())
            .status();
      case OpKind::kBroadcast:
        return RunAndWait(*backend_, Collective::Broadcast(tensor, 0), Next()).status();
      case OpKind::kReduce:
        return RunAndWait(*backend_, Collective::Reduce(tensor, ReduceOp::kSum, 0), Next())
            .status();
      case OpKind::kAllGather:
        return RunAndWait(*backend_, Collective::AllGather(parts, parts[rank_]), Next()).status();
      case OpKind::kReduceScatter:
        return RunAndWait(*backend_, Collective::ReduceScatter(parts[rank_], parts, ReduceOp::kSum),
                          Next())
            .status();
      default:
        return RunAndWait(*backend_, Collective::Barrier(), Next()).status();
    }
  }

  CallContext Next() { return {sequence_++, Deadline(absl::Minutes(1))}; }

  const int rank_, size_;
  const std::shared_ptr<Backend> backend_;
  uint64_t sequence_ = 0;
};

struct Case {
  OpKind kind;
  int64_t bytes;
};

// Of all operations, or of that with this name.
std::vector<Case> Cases(const std::string& operation) {
  std::vector<Case> cases;
  for (OpKind kind : {OpKind::kAllReduce, OpKind::kBroadcast, OpKind::kAllGather, OpKind::kReduce,
                      OpKind::kReduceScatter, OpKind::kBarrier}) {
    if (operation != "all" && operation != Name(kind)) continue;
    for (int64_t bytes :
         {4, 4 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}) {
      if (kind != OpKind::kBarrier || bytes == 4) cases.push_back({kind, bytes});
    }
  }
  return cases;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// The first is what the others are compared with.
const char* const kBackends[] = {"gloo", "auto", "tcp"};
constexpr size_t kCount = std::size(kBackends);

// Prints a line of numbers for each case: of each backend the time and the work, and how many times
// as long as it the first one takes, the median over rounds.
void Measure(const Worker& worker) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (const char* backend : kBackends) ranks.push_back(std::make_unique<Rank>(worker, backend));
  for (const Case& what : Cases(worker.argument)) {
    const Tensor tensor = Tensor::Zeros(DType::kFloat32, {what.bytes / 4});
    const int calls = what.bytes < 1 << 20 ? 50 : what.bytes < 16 << 20 ? 10 : 2;
    std::vector<double> times[kCount], work[kCount], ratios[kCount];
    for (int round = -1; round < 15; ++round) {  // The first is to warm up.
      Cost costs[kCount];
      for (size_t i = 0; i < kCount; ++i) costs[i] = ranks[i]->Round(what.kind, tensor, calls);
      for (size_t i = 0; round >= 0 && i < kCount; ++i) {
        times[i].push_back(costs[i].time);
        work[i].push_back(costs[i].work);
        ratios[i].push_back(costs[0].time / costs[i].time);
      }
    }
    for (size_t i = 0; i < kCount; ++i) {
      std::printf("%f %f %f ", Median(times[i]), Median(work[i]), Median(ratios[i]));
    }
    std::printf("\n");
  }
}

void PrintTable(const std::string& operation, int ranks_of_host) {
  const std::vector<Case> cases = Cases(operation);
  std::vector<int> hosts;
  for (int host = 0; host < 2; ++host) hosts.insert(hosts.end(), ranks_of_host, host);
  Workers workers(hosts, "measure", operation);
  std::vector<std::vector<std::string>> lines;
  for (int rank = 0; rank < workers.size(); ++rank) {
    lines.push_back(absl::StrSplit(workers.Output(rank), '\n'));
  }
  std::string head = "| operation | size |";
  for (const char* backend : kBackends) absl::StrAppend(&head, " ", backend, ", us |");
  for (size_t i = 1; i < kCount; ++i) {
    absl::StrAppend(&head, " ", kBackends[0], " / ", kBackends[i], " | of cores' work |");
  }
  std::printf(
      "%s\n|%s\n", head.c_str(),
      absl::StrJoin(std::vector<std::string>(2 + kCount + 2 * (kCount - 1), "---|"), "").c_str());
  for (size_t c = 0; c < cases.size(); ++c) {
    double times[kCount], ratios[kCount], work[kCount] = {};
    for (int rank = workers.size() - 1; rank >= 0; --rank) {  // Times are those of rank 0.
      const std::vector<std::string> numbers = absl::StrSplit(lines[rank][c], ' ');
      double number = 0;
      for (size_t i = 0; i < 3 * kCount; ++i) {
        if (i >= numbers.size() || !absl::SimpleAtod(numbers[i], &number)) {
          std::printf("rank %d: %s\n", rank, lines[rank][c].c_str());
          return;
        }
        if (i % 3 == 0) times[i / 3] = number;
        if (i % 3 == 1) work[i / 3] += number;
        if (i % 3 == 2) ratios[i / 3] = number;
      }
    }
    std::printf("| %s | %s |", std::string(Name(cases[c].kind)).c_str(),
                Size(cases[c].bytes).c_str());
    for (double time : times) std::printf(" %.0f |", time);
    for (size_t i = 1; i < kCount; ++i) std::printf(" %.2f | %.2f |", ratios[i], work[0] / work[i]);
    std::printf("\n");
  }
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  using namespace syncline;
  if (const auto status = WorkOnHost(argc, argv, {{"measure", &Measure}})) return *status;
  if (!EnterNewNetwork()) {
    std::puts("this user may not make network namespaces");
    return 1;
  }
  PrintTable(argc > 1 ? argv[1] : "all", argc > 2 ? std::atoi(argv[2]) : 2);
  return 0;
}
