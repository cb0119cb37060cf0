// Formats the events of a job as lines of JSON: --event-log.
#ifndef SYNCLINE_LAUNCH_MONITOR_EVENT_LOG_H_
#define SYNCLINE_LAUNCH_MONITOR_EVENT_LOG_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace syncline::launch {

// One line for each event. docs/monitoring.md describes events and fields; a test holds it against
// this class. Not thread-safe.
class EventLog {
 public:
  struct Job {
    std::string run_id;
    std::string node;  // The launcher's unique name in the job.
    std::string host;
  };
  struct Worker {
    int rank = 0;
    int local_rank = 0;
    int pid = 0;
  };
  struct Round {
    int round = 0;
    int group_rank = 0;
    int first_rank = 0;
    int world_size = 0;
    std::vector<std::string> hosts;  // Of the nodes, by group rank.
  };
  // Receives one line with its newline.
  using Emit = std::function<void(absl::string_view)>;

  // With a null `emit`, all methods do nothing.
  EventLog(Job job, Emit emit) : job_(std::move(job)), emit_(std::move(emit)) {}

  // Fields that are on every later line.
  void set_run_id(absl::string_view run_id) { job_.run_id = std::string(run_id); }

  void LauncherStarted(int pid, absl::string_view version);
  void LauncherEnded(int exit_code);

  void Joining(absl::string_view backend, absl::string_view endpoint);
  void RoundFormed(const Round& round);  // Its number is on every later line.
  void WorkersStarted(const std::vector<Worker>& workers);

  // WorkerExited: with exit code 0, or after it was asked to stop. WorkerFailed: any other end,
  // with an exit code other than 0 or killed by `signal`. `reason` is one line.
  void WorkerExited(const Worker& worker, int exit_code, int signal);
  void WorkerFailed(const Worker& worker, int exit_code, int signal, absl::string_view reason);
  void HeartbeatLost(const Worker& worker, absl::Duration silent_for);
  // An operation has waited for long; later it has gone on or failed. `missing` are ranks of its
  // group, "2, 5-9", and `text` is the line that the worker has logged.
  void Stall(const Worker& worker, absl::string_view operation, absl::Duration waited,
             absl::string_view missing, absl::string_view text);
  void StallEnded(const Worker& worker, absl::string_view operation, absl::Duration waited);
  void Restart(int restarts, int max_restarts, absl::string_view reason);
  void StopSignal(absl::string_view signal);

  // Other nodes.
  void NodeJoined(absl::string_view node, absl::string_view host);
  void NodeLeft(absl::string_view node, absl::string_view host);
  void NodeLost(absl::string_view node, absl::string_view host, absl::Duration silent_for);
  void StoreRehosted(absl::string_view address);

 private:
  class Line;

  Line Begin(absl::string_view event) const;
  void Write(const Line& line);

  Job job_;
  Emit emit_;
  int round_ = -1;  // None has formed.
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_MONITOR_EVENT_LOG_H_
