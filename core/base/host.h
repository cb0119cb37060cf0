// Identifies hosts and processes, for topology and for messages. Thread-safe.
#ifndef SYNCLINE_CORE_BASE_HOST_H_
#define SYNCLINE_CORE_BASE_HOST_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/deadline.h"
#include "core/base/resolve.h"

namespace syncline {

// One process of a job, as its peers know it.
struct Peer {
  std::string host;      // Its host's name, for people.
  std::string identity;  // Equal for two processes if, and only if, they share kernel and network.
  int pid = 0;
  std::string pid_namespace;  // That in which `pid` is; pids of another one mean nothing here.
  int64_t started = 0;  // Kernel ticks since boot: tells a process from a later one of its pid.

  // "host b, pid 81".
  std::string ToString() const;

  // To and from one line of text, to be exchanged through a store.
  std::string Serialize() const;
  static absl::StatusOr<Peer> Parse(absl::string_view text);
};

// The calling process. `identity` is made of the kernel's boot id and the network namespace, so
// that containers with networks of their own count as hosts. BackendError if the process lacks a
// descriptor to ask the kernel with.
absl::StatusOr<Peer> IdentifyThisProcess();

// The same for messages: only its host's name and its pid. Never fails.
Peer ThisPeer();

// The address under which this host is reached from `host`: that of the interface through which
// packets to `host` leave. Sends nothing. "127.0.0.1" if `host` is this host's loopback. Fails as
// Resolve does, at the deadline at the latest; so does FirstAddress.
absl::StatusOr<std::string> AddressTowards(absl::string_view host,
                                           const Deadline& deadline = Deadline(kResolveTimeout));

// The first address, as text, that `host` has as a TCP server's; a name may have several.
absl::StatusOr<std::string> FirstAddress(absl::string_view host,
                                         const Deadline& deadline = Deadline(kResolveTimeout));

// Whether `host` is the text of an IPv4 or IPv6 multicast address.
bool IsMulticastAddress(absl::string_view host);

}  // namespace syncline

#endif  // SYNCLINE_CORE_BASE_HOST_H_
