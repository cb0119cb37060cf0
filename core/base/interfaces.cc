#include "core/base/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

// The bytes of an address: 4 or 16; none if `text` is not one.
std::string BytesOf(const std::string& text) {
  char bytes[sizeof(in6_addr)];
  if (inet_pton(AF_INET, text.c_str(), bytes) == 1) return std::string(bytes, sizeof(in_addr));
  if (inet_pton(AF_INET6, text.c_str(), bytes) == 1) return std::string(bytes, sizeof(in6_addr));
  return "";
}

struct Network {
  std::string bytes;
  int bits = 0;

  bool Contains(const std::string& address) const {
    const std::string other = BytesOf(address);
    if (other.size() != bytes.size()) return false;
    for (int bit = 0; bit < bits; ++bit) {
      const int mask = 0x80 >> (bit % 8);
      if (((bytes[bit / 8] ^ other[bit / 8]) & mask) != 0) return false;
    }
    return true;
  }
};

// Of "10.1.0.0/16". Nothing if it is none.
std::optional<Network> ParseNetwork(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  Network network;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &network.bits)) return std::nullopt;
  network.bytes = BytesOf(parts[0]);
  const int most = static_cast<int>(network.bytes.size()) * 8;
  if (network.bytes.empty() || network.bits < 0 || network.bits > most) return std::nullopt;
  return network;
}

bool IsIpv4(const InterfaceAddress& address) { return BytesOf(address.address).size() == 4; }

}  // namespace

absl::StatusOr<std::vector<InterfaceAddress>> InterfaceAddresses() {
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) {
    return BackendError(
        absl::StrCat("cannot list the network interfaces of this host: ", std::strerror(errno)));
  }
  const auto free_interfaces = absl::MakeCleanup([&] { freeifaddrs(interfaces); });
  std::vector<InterfaceAddress> addresses;
  for (const ifaddrs* it = interfaces; it != nullptr; it = it->ifa_next) {
    if (it->ifa_addr == nullptr || (it->ifa_flags & IFF_UP) == 0) continue;
    char text[INET6_ADDRSTRLEN] = {};
    const int family = it->ifa_addr->sa_family;
    if (family == AF_INET) {
      inet_ntop(family, &reinterpret_cast<const sockaddr_in*>(it->ifa_addr)->sin_addr, text,
                sizeof(text));
    } else if (family == AF_INET6) {
      const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(it->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;
      inet_ntop(family, &address, text, sizeof(text));
    }
    if (text[0] != '\0') addresses.push_back({it->ifa_name, text});
  }
  return addresses;
}

absl::StatusOr<std::vector<std::string>> ChooseAddresses(
    absl::string_view choice, absl::Span<const InterfaceAddress> addresses) {
  const bool is_negated = absl::ConsumePrefix(&choice, "^");
  std::vector<std::string> entries = absl::StrSplit(choice, ',');
  std::vector<std::optional<Network>> networks;
  for (std::string& entry : entries) {
    absl::StripAsciiWhitespace(&entry);
    networks.push_back(ParseNetwork(entry));
    const bool is_name = !entry.empty() && entry.find_first_of("/^ ") == std::string::npos;
    if (!networks.back().has_value() && !is_name) {
      return ArgumentError(absl::StrCat(
          "'", entry,
          "' is neither an interface nor a network: expected names or networks, "
          "comma-separated, as 'eth1,10.1.0.0/16', and '^' before the first if it may be none of "
          "them"));
    }
  }
  const auto matches = [&](size_t entry, const InterfaceAddress& address) {
    return networks[entry].has_value() ? networks[entry]->Contains(address.address)
                                       : address.interface == entries[entry];
  };
  // The addresses on offer, IPv4 before IPv6; the loopback is not meant where there is another.
  std::vector<InterfaceAddress> offered(addresses.begin(), addresses.end());
  std::stable_partition(offered.begin(), offered.end(), &IsIpv4);
  std::vector<std::string> chosen;
  if (is_negated) {
    std::stable_partition(offered.begin(), offered.end(),
                          [](const auto& address) { return address.interface != "lo"; });
    for (const InterfaceAddress& address : offered) {
      bool is_excluded = false;
      for (size_t entry = 0; entry < entries.size(); ++entry) {
        is_excluded = is_excluded || matches(entry, address);
      }
      if (!is_excluded && chosen.empty()) chosen.push_back(address.address);
    }
  } else {
    for (size_t entry = 0; entry < entries.size(); ++entry) {
      const auto found =
          std::find_if(offered.begin(), offered.end(),
                       [&](const InterfaceAddress& address) { return matches(entry, address); });
      if (found == offered.end()) continue;
      const bool is_new = std::find(chosen.begin(), chosen.end(), found->address) == chosen.end();
      if (is_new) chosen.push_back(found->address);
    }
  }
  if (!chosen.empty()) return chosen;
  return NetworkError(absl::StrCat(
      "no interface of this host is it; there are ",
      absl::StrJoin(addresses, ", ", [](std::string* out, const InterfaceAddress& address) {
        absl::StrAppend(out, address.interface, " (", address.address, ")");
      })));
}

std::vector<std::string> AbsentInterfaces(absl::string_view choice,
                                          absl::Span<const InterfaceAddress> addresses) {
  std::vector<std::string> absent;
  if (absl::StartsWith(choice, "^")) return absent;
  for (absl::string_view entry : absl::StrSplit(choice, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    const bool is_there =
        ParseNetwork(entry).has_value() ||
        std::any_of(addresses.begin(), addresses.end(),
                    [&](const InterfaceAddress& address) { return address.interface == entry; });
    if (!is_there) absent.emplace_back(entry);
  }
  return absent;
}

}  // namespace syncline::base
