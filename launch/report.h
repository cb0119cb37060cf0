// What the operator is told when a job fails.
#ifndef SYNCLINE_LAUNCH_REPORT_H_
#define SYNCLINE_LAUNCH_REPORT_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launch/agent.h"

namespace syncline {

// What of the host helps to explain a death.
struct HostEvidence {
  std::optional<int64_t> oom_kills;       // By the kernel, in this cgroup, during the job.
  std::optional<int64_t> shm_free_bytes;  // In /dev/shm.
};

// The number of processes that the kernel has killed in this process's cgroup (version 2) for
// lack of memory; nothing if it cannot be read.
std::optional<int64_t> CountOomKills();

// Free space in /dev/shm; nothing if there is none.
std::optional<int64_t> SharedMemoryFree();

// "SIGKILL"; "signal 42" for one without a name.
std::string SignalName(int signal);

// "exit code 3", "SIGKILL", "exit code 0".
std::string DescribeExit(const WorkerExit& exit);

// In plain words, what usually is behind a death by `signal`; empty if there is nothing to say.
std::string ExplainSignal(int signal, const HostEvidence& evidence);

// What a worker left in the file of TORCHELASTIC_ERROR_FILE.
struct RecordedError {
  std::string message;             // Empty if there is none.
  std::optional<absl::Time> time;  // By the wall clock.
  bool is_peer_error = false;      // Syncline's report of a failure elsewhere.
};

// Reads {"message": text}, or {"message": {"message": text, "extraInfo": {...}}} as torch's @record
// and Syncline's Python package write it. To the former's time, which is in whole seconds, the
// latter adds "syncline_time" and "syncline_peer_error".
RecordedError ReadErrorFile(const std::string& path);

struct FailureFacts {
  WorkerExit cause;
  int rank = 0;
  pid_t pid = 0;
  std::string host;
  absl::Duration after;  // From the start of the worker.
  int attempt = 0;
  int max_restarts = 0;
  HostEvidence evidence;
  std::string message;                  // Of the error file.
  std::vector<std::string> last_lines;  // Of its stderr.
  std::string log;                      // The file with all of its stderr, if there is one.
  std::vector<WorkerExit> also_failed;  // The other workers that failed by themselves.
  std::vector<WorkerExit> stopped;      // Those that ended because they were told to.
};

// One line: which worker failed, how, and when.
std::string SummarizeFailure(const FailureFacts& facts);

// The whole story, in some lines. No newline at the end.
std::string ReportFailure(const FailureFacts& facts);

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_REPORT_H_
