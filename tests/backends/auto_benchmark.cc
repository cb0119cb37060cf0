// Backend auto beside backend gloo, over two hosts of two ranks each. Prints a table: of
// all operations, or of that which is named as an argument.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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
    if (!operation.empty() && operation != Name(kind)) continue;
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

// Prints a line of numbers for each case.
void Measure(const Worker& worker) {
  Rank ours(worker, "auto"), gloos(worker, "gloo");
  for (const Case& what : Cases(worker.argument)) {
    const Tensor tensor = Tensor::Zeros(DType::kFloat32, {what.bytes / 4});
    const int calls = what.bytes < 1 << 20 ? 50 : what.bytes < 16 << 20 ? 10 : 2;
    std::vector<double> times, gloos_times, ratios, work, gloos_work;
    for (int round = -1; round < 15; ++round) {  // The first is to warm up.
      const Cost a = ours.Round(what.kind, tensor, calls);
      const Cost b = gloos.Round(what.kind, tensor, calls);
      if (round < 0) continue;
      times.push_back(a.time);
      gloos_times.push_back(b.time);
      ratios.push_back(b.time / a.time);
      work.push_back(a.work);
      gloos_work.push_back(b.work);
    }
    std::printf("%f %f %f %f %f\n", Median(gloos_times), Median(times), Median(ratios),
                Median(gloos_work), Median(work));
  }
}

void PrintTable(const std::string& operation) {
  const std::vector<Case> cases = Cases(operation);
  Workers workers({0, 0, 1, 1}, "measure", operation);
  std::vector<std::vector<std::string>> lines;
  for (int rank = 0; rank < workers.size(); ++rank) {
    lines.push_back(absl::StrSplit(workers.Output(rank), '\n'));
  }
  std::printf("| operation | size | gloo, us | auto, us | gloo / auto | of cores' work |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (size_t i = 0; i < cases.size(); ++i) {
    double time, gloos_time, ratio, all_work = 0, gloos_all_work = 0;
    for (int rank = workers.size() - 1; rank >= 0; --rank) {
      double work, gloos_work;
      if (std::sscanf(lines[rank][i].c_str(), "%lf %lf %lf %lf %lf", &gloos_time, &time, &ratio,
                      &gloos_work, &work) != 5) {
        std::printf("rank %d: %s\n", rank, lines[rank][i].c_str());
        return;
      }
      all_work += work;
      gloos_all_work += gloos_work;
    }
    std::printf("| %s | %s | %.0f | %.0f | %.2f | %.2f |\n",
                std::string(Name(cases[i].kind)).c_str(), Size(cases[i].bytes).c_str(), gloos_time,
                time, ratio, gloos_all_work / all_work);
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
  PrintTable(argc > 1 ? argv[1] : "");
  return 0;
}
