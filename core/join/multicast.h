// How processes that know only a multicast address find the one that hosts their store.
#ifndef SYNCLINE_CORE_JOIN_MULTICAST_H_
#define SYNCLINE_CORE_JOIN_MULTICAST_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/join/opened_store.h"
#include "core/store/store.h"

namespace syncline {

struct MulticastOptions {
  std::string group;  // An IPv4 multicast address.
  int port = 0;
  std::string job;     // Processes of different jobs do not see each other.
  int64_t rank = -1;   // -1: to be assigned.
  int64_t size = 1;    // How many processes meet.
  std::string secret;  // The job's; empty if it has none. Who does not prove it is not heard.
  absl::Duration store_timeout = kDefaultStoreTimeout;
};

// Meets the other processes of the job and opens the TCP store that one of them hosts, on a port
// of the system's choice: the one with the lowest rank or, of those without, with the lowest
// number drawn at random.
//
// Each process announces itself and the set of processes that it hears. Once all `size` of them
// announce the same set, the lowest of it hosts and announces where, until the others have come.
// So no process can host while another means to, and nobody waits for a time to pass.
//
// A TimeoutError tells who has been heard and who has not. ArgumentError if ranks repeat, sizes
// differ or too many come.
absl::StatusOr<OpenedStore> MeetByMulticast(const MulticastOptions& meeting,
                                            const Deadline& deadline);

}  // namespace syncline

#endif  // SYNCLINE_CORE_JOIN_MULTICAST_H_
