// Decides for a whole group whether it may use backend shm on its nodes: all ranks of every node
// must be able to share memory, or no node uses it.
#ifndef SYNCLINE_BACKENDS_COMMON_SHM_AVAILABILITY_H_
#define SYNCLINE_BACKENDS_COMMON_SHM_AVAILABILITY_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "syncline/backend.h"
#include "syncline/deadline.h"

namespace syncline::backends {

// The deadline for making backend shm: that of joining, or half a minute if that is less. All ranks
// have come by then, and a rank that cannot share memory may be unable to say so to the ranks of
// its node that wait for it.
Deadline ShmJoinDeadline(const Deadline& joining);

// Collective over the whole group: publishes whether this rank made its
// backend shm (`own`), and returns whether all ranks did. If some did not, the lowest of them logs
// why. The answer is the same on all ranks. Errors are those of PeerTable::Join: a NetworkError if
// a rank has died, a BackendError if one was interrupted.
absl::StatusOr<bool> ShmIsAvailable(const BackendConfig& config, const absl::Status& own,
                                    std::function<absl::Status()> check_peers);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_SHM_AVAILABILITY_H_
