// What the kernel says of a process.
#ifndef SYNCLINE_CORE_BASE_PROCESS_STATE_H_
#define SYNCLINE_CORE_BASE_PROCESS_STATE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace syncline::base {

struct ProcessState {
  std::string program;  // Its name for the kernel, of at most 15 bytes.
  int parent;
  bool is_zombie;   // It has ended, and waits for its parent to look.
  bool is_ending;   // It is being torn down, or waits as a zombie for its parent.
  bool is_stopped;  // By a signal.
  int64_t started;  // Kernel ticks since boot: tells a process from a later one of its pid.
};

// NotFoundError if there is no such process. Another error, such as a lack of descriptors, says
// nothing about the process. It lives as long as any of its threads.
absl::StatusOr<ProcessState> ReadProcess(int pid);

// The same of one thread, whatever the others do; of a process's pid, of its first one.
absl::StatusOr<ProcessState> ReadThread(int tid);

// The pid namespace of the calling process; "-" if it is not known. The pids of another one mean
// nothing here.
std::string PidNamespace();

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_PROCESS_STATE_H_
