// Identifies hosts and processes, for topology and for messages. Thread-safe.
#ifndef SYNCLINE_CORE_BASE_HOST_H_
#define SYNCLINE_CORE_BASE_HOST_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/resolve.h"
#include "syncline/deadline.h"
#include "syncline/peer.h"

namespace syncline::base {

// The calling process. `identity` is made of the kernel's boot id and the network namespace, so
// that containers with networks of their own count as hosts. BackendError if the process lacks a
// descriptor to ask the kernel with.
absl::StatusOr<Peer> IdentifyThisProcess();

// The same for messages: only its host's name and its pid. Never fails.
Peer ThisPeer();

// Equal for all processes below one kernel since it was started, and for no others.
absl::StatusOr<std::string> BootId();

// The address under which this host is reached from `host`: that of the interface through which
// packets to `host` leave. Sends nothing. "127.0.0.1" if `host` is this host's loopback. Fails as
// Resolve does, at the deadline at the latest; so does FirstAddress.
absl::StatusOr<std::string> AddressTowards(absl::string_view host,
                                           const Deadline& deadline = Deadline(kResolveTimeout));

// The address under which this host is reached from elsewhere, where nothing is known of those who
// reach it: that of the interface of the default route, or else of the first interface that is up
// and not the loopback. Sends nothing. NetworkError if there is none.
absl::StatusOr<std::string> AddressOfDefaultInterface();

// The first address, as text, that `host` has as a TCP server's; a name may have several.
absl::StatusOr<std::string> FirstAddress(absl::string_view host,
                                         const Deadline& deadline = Deadline(kResolveTimeout));

// An address without its port, as text; empty if it has none.
std::string NumericHost(const SocketAddress& address);

// Whether `host` is the text of an IPv4 or IPv6 multicast address.
bool IsMulticastAddress(absl::string_view host);

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_HOST_H_
