// Whether the ranks of each host can share memory: all must, or none does.
#ifndef SYNCLINE_BACKENDS_AUTO_SHARING_H_
#define SYNCLINE_BACKENDS_AUTO_SHARING_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/common/roster.h"
#include "core/base/deadline.h"
#include "core/group/backend.h"

namespace syncline {

// By when ranks that are all here must have succeeded: one that cannot may not be able to say so to
// those who wait for it.
Deadline SharingDeadline(const Deadline& joining);

// Collective: tells the other ranks of the group, which `known` describes, how it went here.
// Returns whether all have succeeded; if not, one of those that have not logs why. The death of a
// rank is an error.
absl::StatusOr<bool> AllShare(const BackendConfig& config, const Roster& known,
                              const absl::Status& own);

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_AUTO_SHARING_H_
