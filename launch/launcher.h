// Carries out the agent's policy on real processes.
#ifndef SYNCLINE_LAUNCH_LAUNCHER_H_
#define SYNCLINE_LAUNCH_LAUNCHER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launch/agent.h"
#include "launch/clock.h"
#include "launch/output/console.h"
#include "launch/descendants.h"
#include "launch/environment.h"
#include "launch/output/fd_sink.h"
#include "launch/guardian.h"
#include "launch/job_files.h"
#include "launch/job_store.h"
#include "launch/options/options.h"
#include "launch/report.h"
#include "launch/signals.h"
#include "launch/worker_set.h"

namespace syncline {

// One job on one host, from its temporary folder to its exit code. A single thread waits for
// signals, output and deadlines at once, and never sleeps. To be used from the main thread.
class Launcher {
 public:
  // Prepares all that workers need, so that most mistakes are found before any is started.
  // The process must not have had other threads when `signals` was opened, and has none yet.
  static absl::StatusOr<std::unique_ptr<Launcher>> Create(const LaunchOptions& options,
                                                          SignalQueue signals);

  // Returns the exit code once no process of the job is left. To be called once.
  int Run();

 private:
  Launcher(const LaunchOptions& options, SignalQueue signals, Guardian guardian);

  absl::Status Prepare();
  absl::StatusOr<std::string> PrepareLogs();
  absl::Status StartWorkers();

  void Carry(Agent::Commands commands);
  Agent::Commands Execute(const AgentCommand& command);

  void WaitForEvents();  // Also moves output.
  void HandleSignals();
  void ReapProcesses();
  WorkerExit DescribeEnd(int local_rank, int status) const;
  void StopWithoutReader();  // As a shell's pipeline would, once stdout is closed.

  FailureFacts CollectFacts(const Agent::Failure& failure) const;
  void SayStop(int signal);
  void Say(absl::string_view text);

  const LaunchOptions options_;
  const Environment environment_;
  const MonotonicClock clock_;
  SignalQueue signals_;
  Guardian guardian_;
  Descendants descendants_;  // Made after the guardian, which is none of them.
  FdSink out_;
  FdSink err_;
  Console console_;
  Agent agent_;
  std::string run_id_;
  std::unique_ptr<JobFiles> files_;
  std::unique_ptr<JobStore> store_;
  std::unique_ptr<WorkerSet> workers_;
  std::optional<int64_t> oom_kills_before_;
  std::string failure_summary_;  // Of the attempt before a restart.
  bool reader_left_ = false;
};

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_LAUNCHER_H_
