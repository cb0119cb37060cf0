#include "syncline/reducer_stats.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncline {
namespace {

double Milliseconds(int64_t nanos) { return static_cast<double>(nanos) / 1e6; }
double Mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// How much of the time in which a bucket was in flight, and none before it, lies before `limit`.
int64_t InFlight(const ReducerStats& stats, int64_t limit) {
  int64_t total = 0, last_end = 0;
  for (size_t b = 0; b < stats.end.size(); ++b) {
    const int64_t begin = std::max(stats.start[b], last_end);
    total += std::max(std::min(stats.end[b], limit) - begin, int64_t{0});
    last_end = std::max(last_end, stats.end[b]);
  }
  return total;
}

}  // namespace

int64_t ReducerStats::communication_time() const {
  return InFlight(*this, std::numeric_limits<int64_t>::max());
}

int64_t ReducerStats::hidden_time() const { return InFlight(*this, backward_end); }

double ReducerStats::overlap_share() const {
  const int64_t all = communication_time();
  return all == 0 ? 1 : static_cast<double>(hidden_time()) / static_cast<double>(all);
}

std::string ReducerStats::ToString() const {
  if (steps == 0) return "no step has communicated yet\n";
  std::string text =
      absl::StrFormat("step %d, hook %s; times in ms from the step's begin\n", steps, hook);
  absl::StrAppendFormat(&text, "%6s %10s %9s %9s %9s %9s %9s\n", "bucket", "parameters", "MiB",
                        "ready", "start", "end", "GiB/s");
  for (size_t b = 0; b < end.size(); ++b) {
    const double seconds = Milliseconds(end[b] - start[b]) / 1e3;
    const double rate = seconds > 0 ? Mebibytes(bucket_bytes[b]) / 1024 / seconds : 0;
    absl::StrAppendFormat(&text, "%6d %10d %9.2f %9.3f %9.3f %9.3f %9.2f\n", b,
                          bucket_parameters[b], Mebibytes(bucket_bytes[b]), Milliseconds(ready[b]),
                          Milliseconds(start[b]), Milliseconds(end[b]), rate);
  }
  const int64_t bytes = std::accumulate(bucket_bytes.begin(), bucket_bytes.end(), int64_t{0});
  const int64_t parameters =
      std::accumulate(bucket_parameters.begin(), bucket_parameters.end(), int64_t{0});
  absl::StrAppendFormat(&text, "%6s %10d %9.2f\n", "all", parameters, Mebibytes(bytes));
  absl::StrAppendFormat(&text,
                        "backward ended at %.3f, the step at %.3f; communication %.3f, of which "
                        "%.3f (%.0f %%) behind "
                        "backward, %.0f %% over all steps; the reducer itself %.3f, "
                        "copying %.3f\n",
                        Milliseconds(backward_end), Milliseconds(step_end),
                        Milliseconds(communication_time()), Milliseconds(hidden_time()),
                        100 * overlap_share(), 100 * total_overlap_share, Milliseconds(own_time),
                        Milliseconds(copy_time));
  return text;
}

}  // namespace syncline
