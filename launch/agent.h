// Decides when the workers of one node start, are asked to stop, are killed and are restarted.
#ifndef SYNCLINE_LAUNCH_AGENT_H_
#define SYNCLINE_LAUNCH_AGENT_H_

#include <signal.h>

#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "launch/clock.h"

namespace syncline::launch {

// How the process of one worker ended.
struct WorkerExit {
  int local_rank = 0;
  int code = 0;    // Its exit code, if signal is 0.
  int signal = 0;  // The signal that killed it, or 0.

  // What it recorded before it ended, if anything.
  enum class Record {
    kNone,
    kError,
    kPeerError,  // Syncline's report of a failure elsewhere.
  };
  Record record = Record::kNone;
  absl::Time failed_at = absl::InfiniteFuture();  // When it recorded the error, or else ended.

  bool ok() const { return code == 0 && signal == 0; }
  // The exit code as a shell reports it: 128 + signal if a signal killed it.
  int ShellCode() const { return signal != 0 ? 128 + signal : code; }
};

// An action for the launcher. Commands never fail; their effects come back to the agent as events.
struct AgentCommand {
  enum class Kind {
    kJoin,                // Ask for a round, reporting failure() if there is one.
    kStartWorkers,        // Start all workers of the round.
    kSignalGroups,        // Send `signal` to the process groups of all living workers.
    kSignalWorkers,       // Send `signal` to the living workers themselves, not their children.
    kTerminateLeftovers,  // Send SIGTERM to all processes that the workers have left behind.
    kKillEverything,      // Send SIGKILL to all living workers and to all that they have started.
    kReportFailure,       // Publish that the round has failed on this node: failure().
    kReportDone,          // Publish that all workers of this node have succeeded.
  };
  Kind kind;
  int signal = 0;
};

struct AgentOptions {
  int workers = 1;
  std::vector<int> stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  std::vector<int> forwarded_signals = {SIGUSR1, SIGUSR2};
  // From an operator's signal to SIGKILL.
  absl::Duration shutdown_timeout = absl::Seconds(30);
  // From the first failure to SIGTERM of the others, so that the worker that caused it can end by
  // itself: it often ends later than those that it takes along, because it prints and frees first.
  // At most shutdown_timeout; twice as long while all failures are peers' errors.
  absl::Duration settle_time = absl::Milliseconds(250);
  // From that SIGTERM to SIGKILL, also when the round ends for another reason, and from the end of
  // the last worker to SIGKILL of its leftovers. At most shutdown_timeout.
  absl::Duration failure_grace = absl::Seconds(1);
  // From SIGKILL to giving up on a process that still exists.
  absl::Duration kill_grace = absl::Seconds(5);
};

// How likely a failure is a consequence of another one: 0 if it is a cause (a recorded error, a
// signal), 2 if it is known to be a consequence. 1: an exit code alone, which may be either.
int Remoteness(const WorkerExit& exit);

// A state machine: each event returns the commands that follow from it. It does no input or output
// and knows no processes, so that tests cover all of it. Owned by Launcher, on the main thread. Not
// thread-safe.
//
//   idle -> joining -> running -> [settling] -> [stopping] -> draining -> joining | finishing
//   joining | finishing | draining -> finished
//
// One worker is the cause of a failure, and the others fail as its consequence; which one is known
// for certain when all have ended. A failure stops all workers of the node, and the node joins
// again; whether there is another round is decided by the leader (rendezvous/round_policy.h). The
// same happens when the round ends for another reason. A stop signal ends the node's part for good.
class Agent {
 public:
  enum class State {
    kIdle,
    kJoining,  // For the next round. There are no workers.
    kRunning,
    kSettling,   // A worker has failed; the others may be failing too, or may be the cause.
    kStopping,   // Workers have been asked to stop.
    kDraining,   // No worker is left; processes that workers started may be.
    kFinishing,  // All workers have succeeded; those of other nodes may still run.
    kFinished,
  };
  using Commands = std::vector<AgentCommand>;

  // `clock` must outlive the agent.
  Agent(const AgentOptions& options, const Clock& clock);

  // The events. Each returns the commands to execute, in order.
  Commands Start();
  Commands OnRound();                // A round begins that this node is a member of.
  Commands OnRoundOver();            // The round that it was in is to end.
  Commands OnClosed(int exit_code);  // There will be no more rounds. The job's exit code.
  Commands OnStartFailed();          // kStartWorkers could not start all.
  // All exits seen at one moment.
  Commands OnWorkersExited(absl::Span<const WorkerExit> exits);
  Commands OnLeftoverExited();  // A process that a worker had started is gone.
  Commands OnNothingLeft();     // While draining: no process of the attempt is left.
  // One of stop_signals stops the job, one of forwarded_signals is passed on to the workers, and
  // any other is ignored; SIGINT, if it is a stop signal, kills at once while the job is stopping.
  // SIGPIPE means that nobody reads the output any more: the workers, which do not notice that, get
  // SIGTERM.
  Commands OnSignal(int signal);
  Commands OnDeadline();  // deadline() has come.

  State state() const { return state_; }
  bool start_failed() const { return start_failed_; }
  int stop_signal() const { return stop_signal_; }   // 0 if there was none.
  absl::Time deadline() const { return deadline_; }  // InfiniteFuture if there is none.

  // The failure of the round that runs, or ran last, on this node.
  struct Failure {
    WorkerExit cause;                     // Provisional until all workers have ended.
    absl::Duration after;                 // From the start of the attempt.
    std::vector<WorkerExit> also_failed;  // The others that failed before they were asked to stop.
    std::vector<WorkerExit> stopped;      // Those that ended after they were asked to.
  };
  const std::optional<Failure>& failure() const { return failure_; }
  // Whether killed processes were still there when the agent finished.
  bool gave_up() const { return gave_up_; }
  // The launcher's exit code, once finished: the job's, or else the one of the failure's cause, or
  // else 128 + the stop signal.
  int exit_code() const;

 private:
  Commands Join();
  void Settle();
  Commands StopOthers();  // After a failure.
  Commands Stop(int signal, absl::Duration grace);
  void Count(WorkerExit exit);
  Commands Drain();
  Commands Kill();
  void Finish();

  const AgentOptions options_;
  const Clock& clock_;
  State state_ = State::kIdle;
  int living_ = 0;
  int stop_signal_ = 0;
  int late_signal_ = 0;        // Came when the node was done.
  bool is_over_ = false;       // The round, for a reason outside this node.
  bool reported_ = false;      // The failure.
  std::optional<int> closed_;  // The job's exit code.
  bool start_failed_ = false;
  bool killed_ = false;
  bool waited_for_cause_ = false;  // Twice settle_time.
  bool gave_up_ = false;
  absl::Time started_;
  absl::Time stopped_;  // When workers were asked to stop; InfiniteFuture if they were not.
  absl::Time deadline_ = absl::InfiniteFuture();
  std::optional<Failure> failure_;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_AGENT_H_
