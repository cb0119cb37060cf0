// Formats the nodes of a job as a table for a terminal. Pure.
#ifndef SYNCLINE_LAUNCH_MONITOR_STATUS_TABLE_H_
#define SYNCLINE_LAUNCH_MONITOR_STATUS_TABLE_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "launch/monitor/job_status.h"

namespace syncline::launch {

// A node's status as an observer has read it.
struct FoundNode {
  NodeStatus status;
  bool answers = true;        // It renews its status.
  absl::Duration silent_for;  // If not: since its last status, by both sides' wall clocks.
};

// What the job as a whole does, one line for each node by group rank, its workers, the operations
// that wait for long, and the last failures, ending with a newline. Text of others is made safe for
// a terminal.
std::string FormatStatusTable(const std::vector<FoundNode>& nodes);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_MONITOR_STATUS_TABLE_H_
