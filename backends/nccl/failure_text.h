// Why a group has failed, as ranks of other hosts read it in the store.
#ifndef SYNCLINE_BACKENDS_NCCL_FAILURE_TEXT_H_
#define SYNCLINE_BACKENDS_NCCL_FAILURE_TEXT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncline::nccl {

struct ReportedFailure {
  int reporter = -1;  // The rank that has found the cause; -1: not known.
  absl::Status cause;
};

// The kind of the cause, the reporter, the ErrorOrigin and the message, in a line each. Requires
// !failure.cause.ok().
std::string SerializeFailure(const ReportedFailure& failure);

// The inverse, for bytes that another process of a group of `size` ranks has written. Ranks that
// the group does not have are dropped; what is not understood is a BackendError that says so.
ReportedFailure ParseFailure(absl::string_view text, int size);

}  // namespace syncline::nccl

#endif  // SYNCLINE_BACKENDS_NCCL_FAILURE_TEXT_H_
