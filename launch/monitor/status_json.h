// Converts a node's status to JSON, which is written to the store and read by tools. Thread-safe.
#ifndef SYNCLINE_LAUNCH_MONITOR_STATUS_JSON_H_
#define SYNCLINE_LAUNCH_MONITOR_STATUS_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launch/monitor/job_status.h"

namespace syncline::launch {

// One line. Times are seconds; what is not known is null. docs/monitoring.md describes the fields.
// Bytes that are not UTF-8 are replaced.
std::string ToJson(const NodeStatus& status);

// The reverse. Fields that are missing keep their defaults and unknown ones are skipped, so that
// neighbouring versions understand each other; a value of the wrong kind is a StoreError.
absl::StatusOr<NodeStatus> NodeStatusFromJson(absl::string_view text);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_MONITOR_STATUS_JSON_H_
