// The workers of one attempt.
#ifndef SYNCLINE_LAUNCH_WORKER_SET_H_
#define SYNCLINE_LAUNCH_WORKER_SET_H_

#include <poll.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launch/output/console.h"
#include "launch/environment.h"
#include "launch/guardian.h"
#include "launch/options/options.h"
#include "launch/program.h"
#include "launch/worker.h"
#include "launch/output/worker_output.h"

namespace syncline {

// Starts the workers, signals them, and moves their output. Not thread-safe.
class WorkerSet {
 public:
  struct Options {
    LaunchOptions launch;
    Program program;
    Environment environment;  // To which the description of the job is added.
    std::string log_dir;      // Of the whole run; empty: no logs.
    std::string temporary;    // A folder for error files, if there are no logs.
  };

  // Borrows `console` and `guardian`.
  WorkerSet(Options options, Console& console, Guardian& guardian);

  // Starts all workers of job.attempt, after Finish() if there were others before. After an error,
  // those that were started run.
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

  // Takes the last of the output, ends all streams, and lets go of all process groups: to be
  // called when no process of the attempt is left.
  void Finish();

  // Of a worker of this attempt.
  pid_t pid(int local_rank) const { return ranks_[local_rank].worker.pid(); }
  const std::string& error_file(int local_rank) const { return ranks_[local_rank].error_file; }
  const std::string& err_log(int local_rank) const { return ranks_[local_rank].err_log; }
  std::vector<std::string> LastErrLines(int local_rank) const {
    return ranks_[local_rank].err.LastLines();
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
    bool guarded = true;
  };

  absl::StatusOr<Rank> StartOne(const JobFacts& job, int local_rank) const;
  std::string LogPath(const JobFacts& job, int local_rank, const std::string& name) const;
  bool IsLogged(int local_rank, Streams which) const;
  WorkerOutput Output(int fd, int local_rank, Streams which, UniqueFd log) const;

  const Options options_;
  Console& console_;
  Guardian& guardian_;
  std::vector<Rank> ranks_;
};

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_WORKER_SET_H_
