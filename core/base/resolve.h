// Resolves names of hosts to addresses, in bounded time. Thread-safe.
#ifndef SYNCLINE_CORE_BASE_RESOLVE_H_
#define SYNCLINE_CORE_BASE_RESOLVE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/sockets.h"
#include "syncline/deadline.h"

namespace syncline::base {

// For callers that have no deadline of their own. Longer than the resolver of the C library asks
// two name servers by default, so that its error, which says more, comes first.
inline constexpr absl::Duration kResolveTimeout = absl::Seconds(30);

struct ResolveOptions {
  int port = 0;
  bool is_to_listen = false;  // AI_PASSIVE: addresses to bind to.
};

// The addresses of `host`, a name or an IPv4 or IPv6 address as text, in the order in which they
// are to be tried (RFC 6724); at least one. An address as text is read at once.
//
// getaddrinfo(3) takes no deadline, and waits for as long as the resolver's configuration says, or
// for a file server that is gone. So it runs on a thread of its own, which is left behind if it
// does not answer in time, and ends whenever getaddrinfo returns.
//
// Errors: NetworkError if the name is unknown, TimeoutError, InterruptedError, and BackendError if
// there is no thread to be had.
absl::StatusOr<std::vector<SocketAddress>> Resolve(
    const std::string& host, const ResolveOptions& options = {},
    const Deadline& deadline = Deadline(kResolveTimeout));

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_RESOLVE_H_
