// Runs one node of a job: executes the agent's commands on real processes.
#ifndef SYNCLINE_LAUNCH_LAUNCHER_H_
#define SYNCLINE_LAUNCH_LAUNCHER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launch/agent.h"
#include "launch/clock.h"
#include "launch/descendants.h"
#include "launch/environment.h"
#include "launch/failure_report.h"
#include "launch/guardian.h"
#include "launch/job_files.h"
#include "launch/monitor/event_log.h"
#include "launch/monitor/job_status.h"
#include "launch/monitor/metrics_server.h"
#include "launch/monitor/status_line.h"
#include "launch/monitor/status_schedule.h"
#include "launch/node.h"
#include "launch/options/options.h"
#include "launch/output/console.h"
#include "launch/output/fd_sink.h"
#include "launch/output/message_queue.h"
#include "launch/output/writer_thread.h"
#include "launch/signals.h"
#include "launch/worker_set.h"

namespace syncline::launch {

// One node of a job, from its temporary folder to its exit code. The main thread alone uses it and
// runs one loop around poll(2): signals, workers' output, events of the rendezvous and deadlines.
// Nothing in the loop blocks; terminals, pipes and disks, which may, are left to WriterThreads.
// Owns everything of the job on this host: workers, files, store, log and metrics.
class Launcher {
 public:
  // Prepares all that workers need, so that most mistakes are found before any worker starts. The
  // process must have had no other threads when `signals` was opened, and must have none yet. A
  // stop signal during this call succeeds; Run() then only returns the exit code. ArgumentError for
  // a mistake of the user; any other kind if the host or the network fails.
  static absl::StatusOr<std::unique_ptr<Launcher>> Create(const LaunchOptions& options,
                                                          SignalQueue signals);

  // Returns the exit code once no process of the job is left here. To be called once.
  int Run();

 private:
  // The threads that write, and the queue of lines from other threads.
  struct OutputWriters {
    static absl::StatusOr<OutputWriters> Open();
    // The sink of stderr; that of stdout if both are the same terminal, file or pipe.
    FdSink& err() const { return own_err != nullptr ? *own_err : *out; }

    std::shared_ptr<MessageQueue> messages;  // From other threads.
    std::unique_ptr<WriterThread> files;
    std::unique_ptr<FdSink> out;
    std::unique_ptr<FdSink> own_err;  // Null if stderr goes where stdout goes.
  };

  Launcher(const LaunchOptions& options, SignalQueue signals, Guardian guardian,
           OutputWriters writers);

  absl::Status Prepare();
  absl::StatusOr<std::string> PrepareLogs();
  absl::Status PrepareMonitors();
  absl::StatusOr<EventLog::Emit> OpenEvents();
  bool IsStopped();             // Looks for a moment.
  absl::Status CheckSignals();  // InterruptedError after a stop signal during the preparation.

  void Execute(Agent::Commands commands);
  Agent::Commands ExecuteOne(const AgentCommand& command);
  absl::Status Join();
  absl::Status StartWorkers();
  JobFacts DescribeRound() const;

  void WaitForEvents();  // Also moves the workers' output.
  void ShowMessages();
  void HandleSignals();
  bool StopsTheJob(int signal) const;
  void TakeEvents();
  void HandleAnnouncement(const Announcement& announcement);
  void ReapProcesses();
  WorkerExit DescribeEnd(int local_rank, int status) const;
  void CheckHealth();
  RecordedError ReadError(int local_rank) const;
  void StopWithoutReader();  // Stops once stdout's reader is gone, as SIGPIPE would.
  void Leave();
  absl::Duration LeaveTimeout() const;
  void FlushOutput();

  // launcher_report.cc: for the operator, the other nodes and the monitors.
  FailureFacts CollectFacts(const Agent::Failure& failure) const;
  FailureNote MakeNote() const;  // Of the agent's failure, or of workers that could not start.
  JobStatus Status() const;
  NodeStatus StatusForOthers() const;
  void ShowStatus();
  void LogExit(const WorkerExit& exit);
  void LogStalls();                    // Those that workers have reported since the last call.
  void LogMembers(const Round& next);  // The nodes that joined and left since the last round.
  void PrintRound();
  void PrintEnd();
  void PrintStop(int signal);
  void Print(absl::string_view text);

  const LaunchOptions options_;
  const Environment environment_;
  const MonotonicClock clock_;
  const absl::Time started_;
  SignalQueue signals_;
  Guardian guardian_;
  Descendants descendants_;  // After guardian_, so that it ignores the guardian.
  const OutputWriters writers_;
  StatusLine status_line_;  // Draws nothing unless --status-line asks for it.
  AboveStatusLine shown_out_;
  AboveStatusLine shown_err_;
  Console console_;
  Agent agent_;
  std::string run_id_;
  std::unique_ptr<JobFiles> files_;
  Node node_;
  std::unique_ptr<WorkerSet> workers_;
  std::optional<EventLog> events_;
  std::unique_ptr<MetricsServer> metrics_;
  StatusSchedule status_schedule_;
  std::optional<int64_t> oom_kills_before_;

  Round round_;  // The last one that this node was a member of.
  std::optional<Announcement> closed_;
  std::string start_error_;   // Why workers could not be started.
  std::string last_failure_;  // One line.
  std::vector<WorkerStatus::State> worker_states_;
  bool reader_left_ = false;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_LAUNCHER_H_
