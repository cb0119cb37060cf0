// The failure of a worker as data, so that every node of a job can tell of it.
#ifndef SYNCLINE_LAUNCH_FAILURE_RECORD_H_
#define SYNCLINE_LAUNCH_FAILURE_RECORD_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launch/agent.h"

namespace syncline {

// All that the node on which the worker failed knows of it. The others have no more to add: what
// explains the death (memory, files, the last lines) is only to be seen there.
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

  std::string explanation;               // What is behind the death, as far as that host can tell.
  std::string message;                   // Of the error that the worker recorded or showed.
  std::vector<std::string> last_lines;   // Of its stderr.
  std::string log;                       // On that host, the file with all of its stderr, if any.
  std::vector<std::string> also_failed;  // "rank 3 (exit code 1)": of the same node, by themselves.
  std::vector<std::string> stopped;      // As above, because they were told to.

  // As a shell would say it: the exit code, or 128 + signal. The job's, if this is its cause.
  int ShellCode() const { return signal != 0 ? 128 + signal : code; }
};

// Whether `a`, rather than `b`, is what happened first in a job: a failure that is not the report
// of a peer's comes before one that is; then one that was recorded or is a signal's before a bare
// exit code; then the earlier one (clocks of hosts may differ by what the job's failures do); then
// the lower rank. A strict order, the same on all nodes.
bool IsLikelierCause(const FailureRecord& a, const FailureRecord& b);

// One line of JSON, in UTF-8 whatever the worker wrote.
std::string ToJson(const FailureRecord& failure);
// INVALID_ARGUMENT if `json` is not what ToJson writes; unknown fields are ignored.
absl::StatusOr<FailureRecord> FailureFromJson(absl::string_view json);

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_FAILURE_RECORD_H_
