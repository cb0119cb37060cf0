// What the kernel says of a process.
#ifndef SYNCLINE_CORE_PROCESS_STATE_H_
#define SYNCLINE_CORE_PROCESS_STATE_H_

#include <cstdint>
#include <optional>

namespace syncline {

struct ProcessState {
  bool is_ending;   // It is being torn down, or waits as a zombie for its parent.
  bool is_stopped;  // By a signal.
  int64_t started;  // Kernel ticks since boot: tells a process from a later one of its pid.
};

// Nothing if there is no such process.
std::optional<ProcessState> ReadProcess(int pid);

}  // namespace syncline

#endif  // SYNCLINE_CORE_PROCESS_STATE_H_
