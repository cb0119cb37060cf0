// Carries out the agent's policy on real processes.
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

// One node of a job, from its temporary folder to its exit code. A single thread waits for signals,
// output, news of the rendezvous and deadlines at once, and never sleeps. What may block,
// terminals, pipes and disks, is left to WriterThreads. To be used from the main thread.
class Launcher {
 public:
  // Prepares all that workers need, so that most mistakes are found before any is started.
  // The process must not have had other threads when `signals` was opened, and has none yet. Heeds
  // signals meanwhile, of which one that stops leaves to Run() only the exit code.
  static absl::StatusOr<std::unique_ptr<Launcher>> Create(const LaunchOptions& options,
                                                          SignalQueue signals);

  // Returns the exit code once no process of the job is left here. To be called once.
  int Run();

 private:
  // Where this thread leaves what may block.
  struct OutputWriters {
    static absl::StatusOr<OutputWriters> Open();
    // The place of stderr, which may be that of stdout.
    FdSink& err() const { return own_err != nullptr ? *own_err : *out; }

    std::shared_ptr<MessageQueue> messages;  // From other threads.
    std::unique_ptr<WriterThread> files;
    std::unique_ptr<FdSink> out;
    std::unique_ptr<FdSink> own_err;  // Null where stderr goes to the place of stdout.
  };

  Launcher(const LaunchOptions& options, SignalQueue signals, Guardian guardian,
           OutputWriters writers);

  absl::Status Prepare();
  absl::StatusOr<std::string> PrepareLogs();
  absl::Status PrepareMonitors();
  absl::StatusOr<EventLog::Emit> OpenEvents();
  bool SignalArrived();         // Within a moment.
  absl::Status CheckSignals();  // InterruptedError once one has stopped the preparation.

  void RunCommands(Agent::Commands commands);
  Agent::Commands Execute(const AgentCommand& command);
  absl::Status Join();
  absl::Status StartWorkers();
  JobFacts DescribeRound() const;

  void WaitForEvents();  // Also moves the workers' output.
  void ShowMessages();
  void HandleSignals();
  void TakeEvents();
  void HandleAnnouncement(const Announcement& announcement);
  void ReapProcesses();
  WorkerExit DescribeEnd(int local_rank, int status) const;
  void CheckHealth();
  RecordedError ReadError(int local_rank) const;
  void StopWithoutReader();  // As a shell's pipeline would, once stdout is closed.
  void Leave();
  absl::Duration LeaveTimeout() const;
  void FlushOutput();

  // launcher_report.cc: what others are told.
  FailureFacts CollectFacts(const Agent::Failure& failure) const;
  FailureNote MakeNote() const;  // Of the agent's failure, or of workers that cannot be started.
  JobStatus Status() const;
  NodeStatus StatusForOthers() const;
  void ShowStatus();
  void LogExit(const WorkerExit& exit);
  void LogStalls();                    // What workers have reported since the last time.
  void LogMembers(const Round& next);  // Who came and who went since the last round.
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
  Descendants descendants_;  // Made after the guardian, which is none of them.
  const OutputWriters writers_;
  StatusLine status_line_;  // Draws nothing unless it is wanted.
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
