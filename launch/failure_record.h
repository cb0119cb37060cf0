// The failure of a worker as data, from which its report is made.
#ifndef SYNCLINE_LAUNCH_FAILURE_RECORD_H_
#define SYNCLINE_LAUNCH_FAILURE_RECORD_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "launch/agent.h"

namespace syncline::launch {

// What the node on which the worker failed knows of it. Only that node can see what explains the
// failure (memory, files, the last lines of output). A plain value.
struct FailureRecord {
  int rank = 0;  // In the world.
  int local_rank = 0;
  std::string host;
  int pid = 0;
  int code = 0;    // Its exit code, if signal is 0.
  int signal = 0;  // The signal that killed it, or 0.
  WorkerExit::Record record = WorkerExit::Record::kNone;
  absl::Time time = absl::UnixEpoch();  // By the wall clock of `host`, in whole milliseconds.
  absl::Duration after;                 // From the start of the worker.
  int round = 0;
  int restarts = 0;  // That came before.
  int max_restarts = 0;

  std::string explanation;               // The likely reason, as far as that host knows it.
  std::string message;                   // Of the error that the worker recorded or showed.
  std::vector<std::string> last_lines;   // Of its stderr.
  std::string log;                       // On that host, the file with all of its stderr, if any.
  std::vector<std::string> also_failed;  // "rank 3 (exit code 1)": of the same node, by themselves.
  std::vector<std::string> stopped;      // As above, after they were asked to stop.

  // The exit code as a shell reports it: 128 + signal if a signal killed the worker. It is the
  // job's if this is the root cause.
  int ShellCode() const { return signal != 0 ? 128 + signal : code; }
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_FAILURE_RECORD_H_
