// Finds the address at which the other ranks of a world reach this host.
#ifndef SYNCLINE_CORE_JOIN_HOST_ADDRESS_H_
#define SYNCLINE_CORE_JOIN_HOST_ADDRESS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/host.h"
#include "syncline/deadline.h"
#include "syncline/store.h"

namespace syncline::join {

// The environment variable that overrides the search: an address of this host, or a name of one.
inline constexpr absl::string_view kHostAddressVariable = "SYNCLINE_HOST_ADDRESS";

// The variables that choose among the interfaces of this host, as base::ChooseAddresses does: our
// own and, where that is not set, the one that users of torch.distributed know.
inline constexpr absl::string_view kInterfaceVariables[] = {"SYNCLINE_SOCKET_IFNAME",
                                                            "GLOO_SOCKET_IFNAME"};

// The addresses of the interfaces that the first of kInterfaceVariables which is set chooses, the
// best first; none if none is set. An ArgumentError or a NetworkError that names the variable if it
// chooses none. Logs a warning, once in a process, if it names interfaces beside those chosen that
// this host does not have.
absl::StatusOr<std::vector<std::string>> ChosenInterfaceAddresses();

// Loopback if all `peers` (by rank) are on one host. Otherwise what SYNCLINE_HOST_ADDRESS says or,
// where it is not set, the address of the interface that SYNCLINE_SOCKET_IFNAME or
// GLOO_SOCKET_IFNAME chooses or, where neither is set, this host's address towards `store_host`
// (which may be empty), towards this host's own name, or towards another peer's: the first of these
// that is not loopback.
//
// Collective: all ranks call it, with a part of their store that is used for nothing else. If one
// host has no such address, all ranks get the NetworkError that names the host and what to set
// there. TimeoutError if a rank does not come by the deadline.
absl::StatusOr<std::string> HostAddress(Store& store, const std::vector<Peer>& peers, int rank,
                                        absl::string_view store_host, const Deadline& deadline);

// The same for one of `peers` alone, without a word to the others: loopback if all are on one host.
// Where names lead nowhere else, the address of the interface of the default route, or of the first
// one. A NetworkError that says what was tried, and what to set.
absl::StatusOr<std::string> AddressOfThisHost(const std::vector<Peer>& peers, int rank,
                                              absl::string_view store_host);

// Those of ChosenInterfaceAddresses that come after `address`, if that is the first of them: where
// else peers reach this host. None otherwise.
std::vector<std::string> MoreAddresses(absl::string_view address);

// Whether `address` is the text of an address that only its own host reaches; 0.0.0.0 counts as
// one.
bool IsLoopbackAddress(absl::string_view address);

// "10.0.0.1" of "10.0.0.1:4711", "::1" of "[::1]:4711"; empty without a port.
std::string HostOf(absl::string_view host_and_port);

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_HOST_ADDRESS_H_
