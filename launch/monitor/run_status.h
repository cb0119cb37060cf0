// `syncline-run status ENDPOINT`: reads the status of a running job.
#ifndef SYNCLINE_LAUNCH_MONITOR_RUN_STATUS_H_
#define SYNCLINE_LAUNCH_MONITOR_RUN_STATUS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "syncline/store.h"

namespace syncline::launch {

// The key of a node's status (ToJson of a NodeStatus, written as StatusSchedule says), below the
// prefix of its job, "rdzv/<run_id>/". The key is deleted when the node leaves.
std::string StatusKey(absl::string_view prefix, absl::string_view node);

enum class StatusFormat {
  kTable,
  kJson,  // {"running": bool, "nodes": [{"answers": bool, "silent_for": seconds, ...}, ...]}
};

struct StatusOptions {
  std::string prefix;
  StatusFormat format = StatusFormat::kTable;
  absl::Duration timeout = absl::Seconds(5);  // For all of it.
};

inline constexpr int kStatusRunning = 0;
inline constexpr int kStatusNobody = 3;

// What to print on stdout, or, if there is nothing to show, on stderr, and the exit code.
struct StatusAnswer {
  int exit_code = kStatusNobody;
  std::string out;
  std::string err;
};

// Reads what the nodes have left in `store`, whose own timeout() must be no more than
// options.timeout. Running: at least one node renews its status. One whose status looks old has
// some seconds to do so, as its clock may be another.
StatusAnswer RunStatus(Store& store, const StatusOptions& options);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_MONITOR_RUN_STATUS_H_
