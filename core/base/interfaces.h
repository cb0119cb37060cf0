// The network interfaces of this host, and the choice of one of their addresses. Thread-safe.
#ifndef SYNCLINE_CORE_BASE_INTERFACES_H_
#define SYNCLINE_CORE_BASE_INTERFACES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace syncline::base {

// An address of an interface that is up. Those that reach no other network (fe80::/10) are left
// out.
struct InterfaceAddress {
  std::string interface;
  std::string address;  // As text.
};

// In the kernel's order. BackendError if the kernel does not say.
absl::StatusOr<std::vector<InterfaceAddress>> InterfaceAddresses();

// The addresses that `choice` names, one for each entry that this host has: interfaces and
// networks, comma-separated, the best first, as "eth1,eth0" or "10.1.0.0/16,fd00:1::/32". Or one
// address, if `choice` begins with "^" and says what it may not be, as "^docker0,lo". Of an
// interface's addresses an IPv4 one is taken before one of IPv6. An ArgumentError for what is no
// such list, a NetworkError that lists `addresses` if none is chosen.
absl::StatusOr<std::vector<std::string>> ChooseAddresses(
    absl::string_view choice, absl::Span<const InterfaceAddress> addresses);

// The names in a `choice` that ChooseAddresses accepts which are those of no interface in
// `addresses`. Not networks, of which hosts that share a setting may each have one, and none after
// "^", which may say what no host should choose.
std::vector<std::string> AbsentInterfaces(absl::string_view choice,
                                          absl::Span<const InterfaceAddress> addresses);

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_INTERFACES_H_
