// The status of a job as one node sees it: the data of the status line, the metrics and
// `syncline-run status`. Plain values and pure functions.
#ifndef SYNCLINE_LAUNCH_MONITOR_JOB_STATUS_H_
#define SYNCLINE_LAUNCH_MONITOR_JOB_STATUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace syncline::launch {

// An operation that has waited for longer than SYNCLINE_STALL_WARNING and still does.
struct StallStatus {
  std::string operation;
  std::string missing;  // "2, 5-9", ranks of the operation's group; empty: not known.
  absl::Duration waited;
};

struct WorkerStatus {
  enum class State { kStarting, kRunning, kSucceeded, kFailed, kStopped };

  int rank = 0;  // In the world.
  int local_rank = 0;
  int pid = 0;
  State state = State::kStarting;
  // Since its last heartbeat; InfiniteDuration if it has none.
  absl::Duration heartbeat_age = absl::InfiniteDuration();
  std::optional<StallStatus> stall;  // Of several, the one that has waited longest.
};

struct JobStatus {
  enum class Phase {
    kJoining,    // Waits for a round.
    kRunning,    // Workers run.
    kStopping,   // Workers have been asked to stop.
    kFinishing,  // Waits for the other nodes' workers.
    kSucceeded,
    kFailed,
  };

  std::string run_id;
  Phase phase = Phase::kJoining;
  int round = 0;
  int restarts = 0;
  int max_restarts = 0;
  int group_rank = 0;  // Of this node.
  int nodes = 0;       // In the round; before it, that have come.
  int min_nodes = 1;
  int max_nodes = 1;
  int world_size = 0;
  std::vector<WorkerStatus> workers;  // Of this node.
  int64_t stall_warnings = 0;         // Of workers of this node, since the launcher started.
  std::string last_failure;           // One line; empty if there was none.
  absl::Duration elapsed;             // Since the launcher started.
};

// A node's status as the node publishes it.
struct NodeStatus {
  std::string host;
  int pid = 0;         // Of the launcher.
  absl::Time updated;  // By the node's wall clock.
  JobStatus job;
};

// "joining", "running", ...
absl::string_view PhaseName(JobStatus::Phase phase);

// "starting", "running", ...
absl::string_view StateName(WorkerStatus::State state);

// All of them, for metrics that show which one holds.
inline constexpr WorkerStatus::State kWorkerStates[] = {
    WorkerStatus::State::kStarting, WorkerStatus::State::kRunning, WorkerStatus::State::kSucceeded,
    WorkerStatus::State::kFailed, WorkerStatus::State::kStopped};
inline constexpr JobStatus::Phase kJobPhases[] = {
    JobStatus::Phase::kJoining,   JobStatus::Phase::kRunning,   JobStatus::Phase::kStopping,
    JobStatus::Phase::kFinishing, JobStatus::Phase::kSucceeded, JobStatus::Phase::kFailed};

// Workers of this node that are starting or running.
int WorkersUp(const JobStatus& status);

// Workers of this node with a stall.
int WorkersStalled(const JobStatus& status);
// The one of them that has waited longest; null if there is none.
const WorkerStatus* LongestStalled(const JobStatus& status);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_MONITOR_JOB_STATUS_H_
