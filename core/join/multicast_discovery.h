// Discovers the store of a job by multicast: one process hosts it, and the others find that
// process.
#ifndef SYNCLINE_CORE_JOIN_MULTICAST_DISCOVERY_H_
#define SYNCLINE_CORE_JOIN_MULTICAST_DISCOVERY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/join/opened_store.h"
#include "syncline/deadline.h"
#include "syncline/store.h"

namespace syncline::join {

struct MulticastOptions {
  std::string group;  // An IPv4 or IPv6 multicast address.
  int port = 0;
  std::string job;  // Processes of different jobs do not see each other.
  int rank = -1;    // -1: to be assigned.
  int size = 1;     // The number of processes of the job.
  std::string
      secret;  // The job's; empty if it has none. Datagrams that do not prove it are ignored.
  bool is_encrypted = false;  // What processes say to each other; needs a secret.
  absl::Duration store_timeout = kDefaultStoreTimeout;
};

// Finds the other processes of the job and opens the TCP store that one of them serves, on a port
// that the system chooses. The server is the process with the lowest rank or, where no rank is
// given, the one with the lowest id, which each draws at random.
//
// Each process announces itself and its view: the set of processes that it hears. Once all `size`
// processes announce the same view, the lowest one in it serves the store, and announces its
// address until the others have connected. So no two processes can both become the server, and no
// process waits for a time to pass.
//
// Called by all processes of the job, on any thread. TimeoutError that lists the processes that
// were heard and those that were not, whose ranks are its ErrorOrigin's; ArgumentError if a rank is
// given twice, sizes differ, or there are more than `size` processes; NetworkError if the group
// cannot be joined.
absl::StatusOr<OpenedStore> DiscoverStoreByMulticast(const MulticastOptions& options,
                                                     const Deadline& deadline);

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_MULTICAST_DISCOVERY_H_
