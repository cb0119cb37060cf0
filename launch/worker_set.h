// The workers of this node in one round.
#ifndef SYNCLINE_LAUNCH_WORKER_SET_H_
#define SYNCLINE_LAUNCH_WORKER_SET_H_

#include <poll.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launch/clock.h"
#include "launch/environment.h"
#include "launch/guardian.h"
#include "launch/heartbeat_monitor.h"
#include "launch/options/options.h"
#include "launch/output/console.h"
#include "launch/output/log_file.h"
#include "launch/output/prefix.h"
#include "launch/output/queued_log.h"
#include "launch/output/worker_output.h"
#include "launch/output/writer_thread.h"
#include "launch/program.h"
#include "launch/stall_reader.h"
#include "launch/worker.h"

namespace syncline::launch {

// Starts the workers, signals them, watches their heartbeats and moves their output. Owns the
// workers' pipes and logs. For the main thread; not thread-safe.
class WorkerSet {
 public:
  struct Options {
    LaunchOptions launch;
    Program program;
    Environment environment;  // The variables of the job are added to it.
    std::string log_dir;      // The folder of the whole run's logs; empty: no logs.
    std::string temporary;  // A folder for heartbeats and stalls, and errors if there are no logs.
  };

  // The timeout of a file operation whose result the launcher needs.
  static constexpr absl::Duration kFileTimeout = absl::Seconds(1);

  // Logs are written by `files`; `report_error` is called on its thread. Borrows the references.
  WorkerSet(Options options, Console& console, Guardian& guardian, WriterThread& files,
            QueuedLog::ReportError report_error);

  // Starts the workers of this node for job.round, after Finish() if there were others before.
  // After an error, the ones started before it keep running.
  absl::Status Start(const JobFacts& job);

  // Signal all living workers.
  void Signal(int signal) const;
  void SignalGroups(int signal) const;

  // Must be called once the process `pid` was reaped. Reads the rest of its output. Returns its
  // local rank; -1 if it is not a worker.
  int Reaped(pid_t pid);

  // Appends the descriptors to poll for output. Read takes the same part of the array after poll().
  void AddTo(std::vector<pollfd>* fds) const;
  void Read(const std::vector<pollfd>& fds);

  // When to call CheckHealth() next, on a MonotonicClock; InfiniteFuture without
  // --health-timeout or workers.
  absl::Time health_deadline() const { return health_.deadline(); }
  // Sends signals to workers without heartbeats. Must not be called after workers were asked to
  // stop.
  struct Unhealthy {
    int local_rank = 0;
    int signal = 0;    // The signal that was sent now.
    std::string line;  // For the operator.
  };
  std::vector<Unhealthy> CheckHealth();

  // The operations of workers that have waited for long.
  StallReader& stalls() { return stalls_; }
  const StallReader& stalls() const { return stalls_; }

  // Reads the rest of the output, ends all streams, and removes all process groups from the
  // guardian. Call it when no process of the round is left.
  void Finish();

  // A worker of this round.
  int rank(int local_rank) const { return first_rank_ + local_rank; }
  pid_t pid(int local_rank) const { return ranks_[local_rank].worker.pid(); }
  const std::string& error_file(int local_rank) const { return ranks_[local_rank].error_file; }
  const std::string& err_log(int local_rank) const { return ranks_[local_rank].err_log; }
  std::vector<std::string> LastErrLines(int local_rank) const {
    return ranks_[local_rank].err.LastLines();
  }
  // Why CheckHealth() ended it; empty if it did not.
  const std::string& reason(int local_rank) const { return ranks_[local_rank].reason; }
  // nullopt if its heartbeats are not watched.
  std::optional<absl::Duration> heartbeat_age(int local_rank) const {
    return health_.Age(local_rank);
  }
  int started() const { return static_cast<int>(ranks_.size()); }

 private:
  // The worker with local rank i is ranks_[i].
  struct Rank {
    Worker worker;
    WorkerOutput out;
    WorkerOutput err;
    std::string error_file;
    std::string err_log;  // The file with its stderr; empty if there is none.
    std::string reason;
    bool guarded = true;
  };
  // The files that a worker's output goes to.
  struct Logs {
    std::unique_ptr<OutputLog> out;
    std::unique_ptr<OutputLog> err;
  };

  absl::Status Prepare(const JobFacts& job);
  absl::StatusOr<Rank> StartOne(const JobFacts& job, int local_rank);
  absl::StatusOr<WorkerSpec> Specify(const JobFacts& job, const WorkerFacts& worker) const;
  absl::StatusOr<Logs> OpenLogs(const JobFacts& job, int local_rank) const;
  absl::StatusOr<std::unique_ptr<OutputLog>> OpenLog(const std::string& path) const;
  absl::StatusOr<std::unique_ptr<OutputLog>> OpenFiltered(const JobFacts& job, Streams which) const;
  absl::StatusOr<LinePrefix> Prefix(const JobFacts& job, int local_rank, pid_t pid) const;
  std::string LogFolder(const JobFacts& job) const;
  bool IsLogged(int local_rank, Streams which) const;
  bool IsShown(int local_rank, Streams which) const;
  WorkerOutput Output(int fd, int local_rank, Streams which, std::unique_ptr<OutputLog> log,
                      const LinePrefix& prefix);

  const Options options_;
  Console& console_;
  Guardian& guardian_;
  WriterThread& files_;
  const QueuedLog::ReportError report_error_;
  const MonotonicClock clock_;
  HeartbeatMonitor health_;
  StallReader stalls_;
  std::optional<std::vector<std::vector<int>>> cpus_;  // Of each worker.
  int first_rank_ = 0;
  // Of this round, for the lines that filters choose. Null if there are no filters.
  std::unique_ptr<OutputLog> filtered_out_;
  std::unique_ptr<OutputLog> filtered_err_;
  std::vector<Rank> ranks_;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_WORKER_SET_H_
