// How what was sent over sockets arrives before they are closed.
#ifndef SYNCLINE_BACKENDS_COMMON_SOCKET_DELIVERY_H_
#define SYNCLINE_BACKENDS_COMMON_SOCKET_DELIVERY_H_

#include <vector>

#include "absl/time/time.h"

namespace syncline::backends {

// Waits until the kernels at the other sides of the TCP sockets have everything that was sent, or
// for `timeout` after the last bytes arrived there. A connection that is closed while something has
// come that nobody has read is reset, and what it has not delivered yet is dropped.
void AwaitDelivery(std::vector<int> sockets, absl::Duration timeout);

// Makes the kernel acknowledge what has come over a TCP socket, for which it otherwise waits up to
// 200 ms, as it can do that along with data. So a peer that has left does not wait in
// AwaitDelivery.
void AcknowledgeNow(int socket);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_SOCKET_DELIVERY_H_
