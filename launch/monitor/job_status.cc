#include "launch/monitor/job_status.h"

#include <algorithm>

namespace syncline::launch {

absl::string_view PhaseName(JobStatus::Phase phase) {
  switch (phase) {
    case JobStatus::Phase::kJoining:
      return "joining";
    case JobStatus::Phase::kRunning:
      return "running";
    case JobStatus::Phase::kStopping:
      return "stopping";
    case JobStatus::Phase::kFinishing:
      return "finishing";
    case JobStatus::Phase::kSucceeded:
      return "succeeded";
    case JobStatus::Phase::kFailed:
      return "failed";
  }
  return "";
}

absl::string_view StateName(WorkerStatus::State state) {
  switch (state) {
    case WorkerStatus::State::kStarting:
      return "starting";
    case WorkerStatus::State::kRunning:
      return "running";
    case WorkerStatus::State::kSucceeded:
      return "succeeded";
    case WorkerStatus::State::kFailed:
      return "failed";
    case WorkerStatus::State::kStopped:
      return "stopped";
  }
  return "";
}

int WorkersUp(const JobStatus& status) {
  return static_cast<int>(
      std::count_if(status.workers.begin(), status.workers.end(), [](const WorkerStatus& worker) {
        return worker.state == WorkerStatus::State::kStarting ||
               worker.state == WorkerStatus::State::kRunning;
      }));
}

int WorkersStalled(const JobStatus& status) {
  return static_cast<int>(
      std::count_if(status.workers.begin(), status.workers.end(),
                    [](const WorkerStatus& worker) { return worker.stall.has_value(); }));
}

const WorkerStatus* LongestStalled(const JobStatus& status) {
  const WorkerStatus* longest = nullptr;
  for (const WorkerStatus& worker : status.workers) {
    if (!worker.stall.has_value()) continue;
    if (longest == nullptr || worker.stall->waited > longest->stall->waited) longest = &worker;
  }
  return longest;
}

}  // namespace syncline::launch
