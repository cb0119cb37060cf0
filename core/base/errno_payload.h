// The errno of a failed system call, as data beside the message of its error.
#ifndef SYNCLINE_CORE_BASE_ERRNO_PAYLOAD_H_
#define SYNCLINE_CORE_BASE_ERRNO_PAYLOAD_H_

#include "absl/status/status.h"

namespace syncline::base {

// Pure functions, for any thread. Annotate keeps the payload; it does not leave the process.

// Attaches `error`, as errno has it. OK stays OK.
absl::Status WithErrno(absl::Status status, int error);

// 0 if the error has none: it is not, or not known to be, that of a system call.
int ErrnoOf(const absl::Status& status);

// Whether it is that of a system call for which this host or process lacks something: descriptors,
// memory. Then nobody else is to blame.
bool IsOwnShortage(const absl::Status& status);

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_ERRNO_PAYLOAD_H_
