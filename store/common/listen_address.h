// Listens on an address, or says why this process cannot.
#ifndef SYNCLINE_STORE_COMMON_LISTEN_ADDRESS_H_
#define SYNCLINE_STORE_COMMON_LISTEN_ADDRESS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/resolve.h"
#include "core/base/unique_fd.h"
#include "syncline/deadline.h"

namespace syncline::store {

// "127.0.0.1:80", "[::1]:80".
std::string JoinHostPort(absl::string_view host, int port);

// Listening sockets, non-blocking, for all addresses that a host name stands for.
struct Listener {
  std::vector<base::UniqueFd> sockets;
  int port = 0;
};

// Listens on each address of `host` that this process can have, on one port for all (0: of the
// system's choice). 0.0.0.0 and :: stand for all addresses of this host, IPv4 and IPv6. If there is
// none, the NetworkError says what to do, and has the errno (core/base/errno_payload.h); where
// another process has the port, the error names that process if /proc shows it. Fails at the
// deadline, as Resolve does, if `host` cannot be looked up.
absl::StatusOr<Listener> Listen(const std::string& host, int port,
                                const Deadline& deadline = Deadline(base::kResolveTimeout));

// The message of such an error without what it advises those who can choose host and port.
absl::string_view WithoutAdvice(absl::string_view listen_error);

// The socket of somebody else, which listens already, on `port` unless that is 0. ArgumentError if
// it does not.
absl::StatusOr<Listener> AdoptListener(base::UniqueFd socket, int port);

// The process that listens on TCP port `port` of this host; nothing if this process may not know.
std::optional<int> FindListener(int port);

}  // namespace syncline::store

#endif  // SYNCLINE_STORE_COMMON_LISTEN_ADDRESS_H_
