// What one rank tells the others, through the store, when its operation fails.
#ifndef SYNCLINE_BACKENDS_COMMON_FAILURE_REPORT_H_
#define SYNCLINE_BACKENDS_COMMON_FAILURE_REPORT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "backends/common/call_description.h"
#include "backends/common/failure_reporter.h"
#include "syncline/status.h"

namespace syncline::backends {

// What one rank has published. An idle rank has nothing but `idle`, unless one of its calls has
// failed since.
struct RankReport {
  ErrorKind kind = ErrorKind::kNetwork;
  std::vector<int> lost;
  std::vector<CallDescription> under_way;
  std::vector<int> waits_for;  // The ranks for which alone it waited, if it knew.
  std::string idle;
  std::string operation;
  absl::Duration timeout = absl::ZeroDuration();  // The operation's.
  std::vector<int> ranks;                         // Those at fault, as far as the rank knew.
  std::string message;
};

std::string SerializeReport(const Failure& failure);

// The report of another process, which may be broken: what is not understood is left out, and so
// are ranks that a group of `size` does not have.
RankReport ParseReport(absl::string_view text, int size);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_FAILURE_REPORT_H_
