#include "launch/monitor/metrics.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace syncline::launch {
namespace {

using Labels = std::vector<std::pair<absl::string_view, std::string>>;

std::string Escaped(absl::string_view value) {
  return absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
}

// Writes one family after the other: its description, then its samples.
class Writer {
 public:
  void Family(absl::string_view name, absl::string_view type, absl::string_view help) {
    name_ = absl::StrCat("syncline_launcher_", name);
    absl::StrAppend(&text_, "# HELP ", name_, " ", help, "\n# TYPE ", name_, " ", type, "\n");
  }

  void Sample(const Labels& labels, double value) {
    absl::StrAppend(&text_, name_);
    const char* before = "{";
    for (const auto& [label, label_value] : labels) {
      absl::StrAppend(&text_, std::exchange(before, ","), label, "=\"", Escaped(label_value), "\"");
    }
    absl::StrAppend(&text_, labels.empty() ? "" : "}", " ", absl::StrFormat("%.12g", value), "\n");
  }

  void Gauge(absl::string_view name, absl::string_view help, double value) {
    Family(name, "gauge", help);
    Sample({}, value);
  }

  std::string Take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

Labels WorkerLabels(const WorkerStatus& worker) {
  return {{"rank", absl::StrCat(worker.rank)}, {"local_rank", absl::StrCat(worker.local_rank)}};
}

void WriteWorkers(const std::vector<WorkerStatus>& workers, Writer* writer) {
  writer->Family("worker_state", "gauge", "1 for the state that a worker of this node is in.");
  for (const WorkerStatus& worker : workers) {
    for (const WorkerStatus::State state : kWorkerStates) {
      Labels labels = WorkerLabels(worker);
      labels.emplace_back("state", std::string(StateName(state)));
      writer->Sample(labels, worker.state == state ? 1 : 0);
    }
  }
  writer->Family("worker_heartbeat_age_seconds", "gauge",
                 "Since the last heartbeat of a worker that has given one.");
  for (const WorkerStatus& worker : workers) {
    if (worker.heartbeat_age == absl::InfiniteDuration()) continue;
    writer->Sample(WorkerLabels(worker), absl::ToDoubleSeconds(worker.heartbeat_age));
  }
  writer->Family("worker_stall_seconds", "gauge",
                 "How long the operation of a worker that is stalled has waited.");
  for (const WorkerStatus& worker : workers) {
    if (!worker.stall.has_value()) continue;
    writer->Sample(WorkerLabels(worker), absl::ToDoubleSeconds(worker.stall->waited));
  }
}

}  // namespace

std::string FormatMetrics(const NodeStatus& status) {
  const JobStatus& job = status.job;
  Writer writer;
  writer.Gauge("up", "Always 1: the launcher answers.", 1);
  writer.Family("info", "gauge", "Always 1: which job and host this is.");
  writer.Sample({{"run_id", job.run_id}, {"host", status.host}}, 1);
  writer.Family("phase", "gauge", "1 for the phase that the job is in on this node.");
  for (const JobStatus::Phase phase : kJobPhases) {
    writer.Sample({{"phase", std::string(PhaseName(phase))}}, job.phase == phase ? 1 : 0);
  }
  writer.Gauge("round", "How often the group has formed again.", job.round);
  writer.Family("restarts_total", "counter", "Restarts after a failure of a worker.");
  writer.Sample({}, job.restarts);
  writer.Gauge("max_restarts", "How many of them there may be.", job.max_restarts);
  writer.Gauge("group_rank", "Of this node.", job.group_rank);
  writer.Gauge("nodes", "In the round; before it, that have come.", job.nodes);
  writer.Gauge("world_size", "Workers of all nodes in the round.", job.world_size);
  writer.Gauge("workers_up", "Workers of this node that are starting or running.", WorkersUp(job));
  writer.Gauge("workers_stalled", "Workers of this node in an operation that has waited for long.",
               WorkersStalled(job));
  writer.Family("stall_warnings_total", "counter",
                "Warnings of workers of this node that an operation waits for long.");
  writer.Sample({}, static_cast<double>(job.stall_warnings));
  writer.Gauge("elapsed_seconds", "Since the launcher started.",
               absl::ToDoubleSeconds(job.elapsed));
  WriteWorkers(job.workers, &writer);
  return writer.Take();
}

}  // namespace syncline::launch
