// A barrier that finds out who is missing.
#ifndef SYNCLINE_CORE_GROUP_MONITORED_BARRIER_H_
#define SYNCLINE_CORE_GROUP_MONITORED_BARRIER_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "core/base/liveness.h"
#include "syncline/deadline.h"
#include "syncline/store.h"

namespace syncline::group {

// Returns once all `size` ranks have called it with this `number`. If they have not by `deadline`,
// every rank that has come, or comes later, gets the same TimeoutError, which names all that had
// not. Uses `store` alone, so that it works whatever state the backend is in. A store
// that does not answer is a TimeoutError, by the deadline or a second or two after it.
//
// `group_status`, if given, says why the group has been aborted, and OK while it has not: then the
// call ends at once with that, and those of the other ranks with a BackendError that quotes it.
// What `check_peers` says within a second or two, such as a NetworkError that names a rank that has
// died, ends the calls of all ranks.
absl::Status MonitoredBarrier(Store& store, int rank, int size, uint64_t number,
                              const Deadline& deadline,
                              const std::function<absl::Status()>& group_status = nullptr,
                              const PeerCheck& check_peers = nullptr);

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_MONITORED_BARRIER_H_
