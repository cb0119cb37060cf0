// The workers of one attempt.
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

// Starts the workers, signals them, and moves their output. Not thread-safe.
class WorkerSet {
 public:
  struct Options {
    LaunchOptions launch;
    Program program;
    Environment environment;  // To which the description of the job is added.
    std::string log_dir;      // Of the whole run; empty: no logs.
    std::string temporary;  // A folder for heartbeats and stalls, and errors if there are no logs.
  };

  // How long a file operation is waited for, where the launcher needs its result.
  static constexpr absl::Duration kFileTimeout = absl::Seconds(1);

  // Logs are written by `files`; `report_error` is called on its thread. Borrows the references.
  WorkerSet(Options options, Console& console, Guardian& guardian, WriterThread& files,
            QueuedLog::ReportError report_error);

  // Starts the workers of this node for job.round, after Finish() if there were others before.
  // After an error, those that were started run.
  absl::Status Start(const JobFacts& job);

  // To living workers.
  void Signal(int signal) const;
  void SignalGroups(int signal) const;

  // The process `pid` has been reaped. Returns its local rank, with all its output taken; -1 if it
  // is no worker.
  int Reaped(pid_t pid);

  // Appends what to poll for output. Then Read takes it from the same part of the array.
  void AddTo(std::vector<pollfd>* fds) const;
  void Read(const std::vector<pollfd>& fds);

  // When CheckHealth() is to be called next, on a MonotonicClock; InfiniteFuture without
  // --health-timeout or workers.
  absl::Time health_deadline() const { return health_.deadline(); }
  // Ends workers that make no progress. To be called while workers have not been told to stop.
  struct Unhealthy {
    int local_rank = 0;
    int signal = 0;    // What it has got now.
    std::string line;  // That says so.
  };
  std::vector<Unhealthy> CheckHealth();

  // The operations of workers that wait for long.
  StallReader& stalls() { return stalls_; }
  const StallReader& stalls() const { return stalls_; }

  // Takes the last of the output, ends all streams, and lets go of all process groups: to be
  // called when no process of the attempt is left.
  void Finish();

  // Of a worker of this round.
  int rank(int local_rank) const { return first_rank_ + local_rank; }
  pid_t pid(int local_rank) const { return ranks_[local_rank].worker.pid(); }
  const std::string& error_file(int local_rank) const { return ranks_[local_rank].error_file; }
  const std::string& err_log(int local_rank) const { return ranks_[local_rank].err_log; }
  std::vector<std::string> LastErrLines(int local_rank) const {
    return ranks_[local_rank].err.LastLines();
  }
  // Why CheckHealth() ended it; empty if it did not.
  const std::string& reason(int local_rank) const { return ranks_[local_rank].reason; }
  // Nothing if it is not watched, or not any more.
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
