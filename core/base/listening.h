// Sockets that listen for connections, and the ports that they may take.
#ifndef SYNCLINE_CORE_BASE_LISTENING_H_
#define SYNCLINE_CORE_BASE_LISTENING_H_

#include <optional>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "core/base/sockets.h"
#include "core/base/unique_fd.h"

namespace syncline::base {

// Ports that a firewall lets through, both ends included.
struct PortRange {
  int first = 0, last = 0;
};

// From SYNCLINE_PORT_RANGE, as "20000-20099"; nothing if it is unset. ArgumentError for anything
// else.
absl::StatusOr<std::optional<PortRange>> PortRangeFromEnvironment(
    const EnvironmentLookup& environment = GetEnv);

// The port in an address of IPv4 or IPv6.
int PortOf(const SocketAddress& address);
void SetPort(SocketAddress& address, int port);

// A non-blocking socket that listens at `address`. Where its port is 0, that becomes a free one of
// PortRangeFromEnvironment or, without one, of the system's choice. With `takes_ipv4`, one of IPv6
// takes connections of IPv4 too. A NetworkError has the errno of the call that failed
// (errno_payload.h): EADDRINUSE if no port of the range is free.
absl::StatusOr<UniqueFd> ListenOn(SocketAddress& address, bool takes_ipv4 = false);

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_LISTENING_H_
