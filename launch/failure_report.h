// Explains a worker's failure to the operator: collects evidence, finds the error, writes the
// report. All functions are thread-safe; those that read files block on the file system.
#ifndef SYNCLINE_LAUNCH_FAILURE_REPORT_H_
#define SYNCLINE_LAUNCH_FAILURE_REPORT_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launch/agent.h"
#include "launch/failure_record.h"

namespace syncline::launch {

// Facts about the host that help to explain why a worker died.
struct HostEvidence {
  std::optional<int64_t> oom_kills;       // By the kernel, in this cgroup, during the job.
  std::optional<int64_t> shm_free_bytes;  // In /dev/shm.
};

// The number of processes that the kernel has killed in this process's cgroup (version 2 or 1) for
// lack of memory; nothing if it cannot be read. `root` is what / is, except in tests.
std::optional<int64_t> CountOomKills(const std::string& root = "");

// Free space in /dev/shm; nothing if there is none.
std::optional<int64_t> SharedMemoryFree();

// "SIGKILL"; "signal 42" for one without a name.
std::string SignalName(int signal);

// "exit code 3", "SIGKILL", "exit code 0".
std::string DescribeExit(const WorkerExit& exit);

// What a death by `signal` usually means, in plain words; empty if there is nothing to add.
std::string ExplainSignal(int signal, const HostEvidence& evidence);

// The error that a worker recorded in the file of TORCHELASTIC_ERROR_FILE.
struct RecordedError {
  std::string message;             // Empty if there is none.
  std::optional<absl::Time> time;  // By the wall clock.
  bool is_peer_error = false;      // Syncline's report of a failure elsewhere.
};

// Reads {"message": text}, or {"message": {"message": text, "extraInfo": {...}}} as torch's @record
// and Syncline's Python package write it. To the former's time, which is in whole seconds, the
// latter adds "syncline_time" and "syncline_peer_error".
RecordedError ReadErrorFile(const std::string& path);

// "ValueError: x" if that ends the last traceback of Python in `lines`, which may begin within it;
// empty if there is none. For programs that record no error.
std::string MessageOfTraceback(const std::vector<std::string>& lines);

// The input of MakeRecord.
struct FailureFacts {
  WorkerExit cause;
  int rank = 0;        // Of the cause, in the world.
  int first_rank = 0;  // Of this node's worker 0.
  pid_t pid = 0;
  std::string host;
  absl::Duration after;  // From the start of the worker.
  int round = 0;
  int attempt = 0;  // Restarts that came before.
  int max_restarts = 0;
  HostEvidence evidence;
  // The launcher's own reason to kill the worker; empty: it did not, `evidence` explains the death.
  std::string reason;
  std::string message;                  // Of the error file.
  std::vector<std::string> last_lines;  // Of its stderr.
  std::string log;                      // The file with all of its stderr, if there is one.
  std::vector<WorkerExit> also_failed;  // The other workers that failed by themselves.
  std::vector<WorkerExit> stopped;      // Those that ended after they were asked to stop.
};

// `time` is that of the failure, by the wall clock.
FailureRecord MakeRecord(const FailureFacts& facts, absl::Time time);

// One line: which worker failed, how, and when.
std::string SummarizeFailure(const FailureRecord& failure);

// The full report, several lines without a newline at the end.
std::string ReportFailure(const FailureRecord& failure);

// The same for a failure on this node.
std::string SummarizeFailure(const FailureFacts& facts);
std::string ReportFailure(const FailureFacts& facts);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_FAILURE_REPORT_H_
