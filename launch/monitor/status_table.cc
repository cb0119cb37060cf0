#include "launch/monitor/status_table.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launch/monitor/text.h"

namespace syncline::launch {
namespace {

constexpr int kMaxCell = 120;  // Columns.
constexpr absl::string_view kBetween = "  ";

using Row = std::vector<std::string>;

// Columns as wide as their longest cell; no spaces at the ends of lines.
std::string Align(const std::vector<Row>& rows) {
  std::vector<int> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Columns(row[i]));
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - Columns(row[i]), ' '), kBetween);
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return text;
}

// "0-3,7".
std::string Ranges(const std::set<int>& numbers) {
  std::string text;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const int first = *it;
    int last = first;
    while (++it != numbers.end() && *it == last + 1) last = *it;
    absl::StrAppend(&text, text.empty() ? "" : ",", first,
                    last > first ? absl::StrCat("-", last) : "");
  }
  return text;
}

// "running 0-2, failed 3".
std::string Workers(const std::vector<WorkerStatus>& workers) {
  std::map<WorkerStatus::State, std::set<int>> ranks;
  for (const WorkerStatus& worker : workers) ranks[worker.state].insert(worker.rank);
  return absl::StrJoin(ranks, ", ", [](std::string* out, const auto& of_state) {
    absl::StrAppend(out, StateName(of_state.first), " ", Ranges(of_state.second));
  });
}

// "0.4s", or "0.4s to 12.0s"; of the workers that have heartbeats.
std::string Heartbeats(const std::vector<WorkerStatus>& workers) {
  absl::Duration youngest = absl::InfiniteDuration();
  absl::Duration oldest = -absl::InfiniteDuration();
  for (const WorkerStatus& worker : workers) {
    if (worker.heartbeat_age == absl::InfiniteDuration()) continue;
    youngest = std::min(youngest, worker.heartbeat_age);
    oldest = std::max(oldest, worker.heartbeat_age);
  }
  const auto text = [](absl::Duration age) {
    return absl::FormatDuration(absl::Trunc(age, absl::Milliseconds(100)));
  };
  if (oldest < absl::ZeroDuration()) return "-";
  const std::string from = text(youngest);
  const std::string to = text(oldest);
  return from == to ? from : absl::StrCat(from, " to ", to);
}

// One line about the node's stalled workers; empty if there are none.
std::string Stalls(const FoundNode& node) {
  const JobStatus& job = node.status.job;
  const WorkerStatus* const longest = LongestStalled(job);
  if (longest == nullptr) return "";
  const StallStatus& stall = *longest->stall;
  const std::string waited = absl::FormatDuration(absl::Trunc(stall.waited, absl::Seconds(1)));
  return absl::StrCat(
      "stalled, as host ", Printable(node.status.host, kMaxCell), " reports: ", WorkersStalled(job),
      " of ", job.workers.size(), " worker(s); rank ", longest->rank, " waits for ", waited, " in ",
      Printable(stall.operation, 2 * kMaxCell),
      stall.missing.empty() ? ""
                            : absl::StrCat(", missing: ", Printable(stall.missing, 2 * kMaxCell)),
      "\n");
}

std::string State(const FoundNode& node) {
  if (node.answers) return std::string(PhaseName(node.status.job.phase));
  return absl::StrCat("silent for ",
                      absl::FormatDuration(absl::Trunc(node.silent_for, absl::Seconds(1))));
}

Row NodeRow(const FoundNode& node) {
  const JobStatus& job = node.status.job;
  return {job.phase == JobStatus::Phase::kJoining ? "-" : absl::StrCat(job.group_rank),
          Printable(node.status.host, kMaxCell),
          absl::StrCat(node.status.pid),
          State(node),
          absl::StrCat(job.round),
          absl::StrCat(job.restarts, "/", job.max_restarts),
          job.workers.empty() ? "-" : Workers(job.workers),
          Heartbeats(job.workers),
          FormatElapsed(job.elapsed)};
}

// The answering node with the newest round.
const JobStatus& Newest(const std::vector<FoundNode>& nodes) {
  return std::max_element(nodes.begin(), nodes.end(),
                          [](const FoundNode& a, const FoundNode& b) {
                            return std::make_tuple(a.answers, a.status.job.round) <
                                   std::make_tuple(b.answers, b.status.job.round);
                          })
      ->status.job;
}

std::string Summary(const std::vector<FoundNode>& nodes) {
  const JobStatus& job = Newest(nodes);
  const std::string range = job.min_nodes == job.max_nodes
                                ? absl::StrCat(job.max_nodes)
                                : absl::StrCat(job.min_nodes, " to ", job.max_nodes);
  return absl::StrCat("job ", Printable(job.run_id, kMaxCell), ": round ", job.round, ", ",
                      job.nodes, " node(s) of ", range, ", ", job.world_size,
                      " worker(s), restarts ", job.restarts, "/", job.max_restarts, "\n");
}

}  // namespace

std::string FormatStatusTable(const std::vector<FoundNode>& nodes) {
  if (nodes.empty()) return "no nodes\n";
  std::vector<FoundNode> sorted = nodes;
  const auto order = [](const FoundNode& node) {
    const JobStatus& job = node.status.job;
    return std::make_tuple(job.phase == JobStatus::Phase::kJoining, job.group_rank,
                           node.status.host, node.status.pid);
  };
  std::sort(sorted.begin(), sorted.end(),
            [&order](const FoundNode& a, const FoundNode& b) { return order(a) < order(b); });
  std::vector<Row> rows = {
      {"NODE", "HOST", "PID", "STATE", "ROUND", "RESTARTS", "RANKS", "HEARTBEAT", "ELAPSED"}};
  std::string stalls;
  std::string failures;
  for (const FoundNode& node : sorted) {
    rows.push_back(NodeRow(node));
    absl::StrAppend(&stalls, Stalls(node));
    const std::string& failure = node.status.job.last_failure;
    if (failure.empty()) continue;
    const std::string line =
        absl::StrCat("last failure, as host ", Printable(node.status.host, kMaxCell),
                     " reports: ", Printable(failure, 4 * kMaxCell), "\n");
    absl::StrAppend(&failures, line);
  }
  return absl::StrCat(Summary(sorted), Align(rows), stalls, failures);
}

}  // namespace syncline::launch
