#include "core/join/multicast_socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/host.h"
#include "core/base/unique_fd.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

constexpr size_t kMaxDatagram = 65536;

absl::Status Failed(absl::string_view what, absl::string_view group, int port, int error) {
  return NetworkError(absl::StrCat("multicast group ", group, ", port ", port, ": ", what, ": ",
                                   std::strerror(error)));
}

// An interface of this host, and the address that others reach it by.
struct Interface {
  std::string address;
  unsigned index = 0;  // Of IPv6 alone.
};

// One of this host's interfaces and IPv6 addresses.
struct Entry {
  std::string name;
  unsigned index = 0;
  in6_addr address = {};
  bool can_multicast = false;  // It is up, is not loopback, and takes part in multicast.

  // Others may be told of it, and know where to send then.
  bool is_known_elsewhere() const { return !IN6_IS_ADDR_LINKLOCAL(&address); }
  Interface ToInterface() const {
    char text[INET6_ADDRSTRLEN] = {};
    inet_ntop(AF_INET6, &address, text, sizeof(text));
    return {text, index};
  }
};

absl::StatusOr<std::vector<Entry>> ListInterfaces() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    return NetworkError(absl::StrCat("cannot list the interfaces: ", std::strerror(errno)));
  }
  const auto free_all = absl::MakeCleanup([all] { freeifaddrs(all); });
  std::vector<Entry> entries;
  for (const ifaddrs* found = all; found != nullptr; found = found->ifa_next) {
    if (found->ifa_addr == nullptr || found->ifa_addr->sa_family != AF_INET6) continue;
    constexpr unsigned kNeeded = IFF_UP | IFF_MULTICAST;
    entries.push_back({found->ifa_name, if_nametoindex(found->ifa_name),
                       reinterpret_cast<const sockaddr_in6*>(found->ifa_addr)->sin6_addr,
                       (found->ifa_flags & (kNeeded | IFF_LOOPBACK)) == kNeeded});
  }
  return entries;
}

// The interface `name`, which may also be its number.
absl::StatusOr<Interface> NamedInterface(const std::string& name) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Entry> entries, ListInterfaces());
  unsigned index = if_nametoindex(name.c_str());
  if (index == 0 && !absl::SimpleAtoi(name, &index)) index = 0;
  std::vector<std::string> names;
  const Entry* link_local = nullptr;
  for (const Entry& entry : entries) {
    if (entry.index == index && entry.is_known_elsewhere()) return entry.ToInterface();
    if (entry.index == index) link_local = &entry;
    if (entry.is_known_elsewhere()) names.push_back(entry.name);
  }
  if (link_local != nullptr) {
    return NetworkError(absl::StrCat("interface ", link_local->name, " has the address ",
                                     link_local->ToInterface().address,
                                     " alone, which holds within its link: give it one that other "
                                     "hosts can use"));
  }
  return NetworkError(absl::StrCat("no interface '", name, "' of this host has an IPv6 address; ",
                                   "those with one are: ", absl::StrJoin(names, ", ")));
}

// The interface that routes to the group, if other hosts know its address; else another that takes
// part in multicast. An address within the link comes without its interface on other hosts, so one
// of wider scope takes its place.
absl::StatusOr<Interface> RoutedInterface(const base::SocketAddress& group) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Entry> entries, ListInterfaces());
  unsigned routed = 0;
  // Connecting a datagram socket picks a route and sends nothing.
  const base::UniqueFd fd(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  base::SocketAddress local;
  if (fd.valid() && connect(fd.get(), group.get(), group.length) == 0 &&
      getsockname(fd.get(), local.get(), &local.length) == 0) {
    const auto& chosen = *reinterpret_cast<const sockaddr_in6*>(local.get());
    for (const Entry& entry : entries) {
      if (!IN6_ARE_ADDR_EQUAL(&entry.address, &chosen.sin6_addr)) continue;
      if (entry.is_known_elsewhere()) return entry.ToInterface();
      // Interfaces may share an address within the link, so its scope counts.
      if (chosen.sin6_scope_id == entry.index) routed = entry.index;
    }
  }
  for (const bool is_routed : {true, false}) {
    for (const Entry& entry : entries) {
      const bool fits = is_routed ? entry.index == routed : entry.can_multicast;
      if (fits && entry.is_known_elsewhere()) return entry.ToInterface();
    }
  }
  return NetworkError(
      "no interface that takes part in multicast has an IPv6 address that other "
      "hosts can use");
}

// `name` is what follows the group's "%", if anything does.
absl::StatusOr<Interface> InterfaceTowards(const std::string& group, const std::string& name,
                                           const base::SocketAddress& address) {
  if (address.family() == AF_INET6) {
    return name.empty() ? RoutedInterface(address) : NamedInterface(name);
  }
  // Any interface will do where none routes to the group; and where there is none, loopback reaches
  // the processes of this host.
  absl::StatusOr<std::string> local = base::AddressTowards(group);
  if (!local.ok()) local = base::AddressOfDefaultInterface();
  return Interface{std::move(local).value_or("127.0.0.1")};
}

// The address of a group that is written in numbers, without its interface.
base::SocketAddress AddressOf(const std::string& numbers, int port) {
  base::SocketAddress address;
  auto& v4 = *reinterpret_cast<sockaddr_in*>(address.get());
  auto& v6 = *reinterpret_cast<sockaddr_in6*>(address.get());
  const auto port_number = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, numbers.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = port_number;
    address.length = sizeof(v4);
    return address;
  }
  v6 = {};
  inet_pton(AF_INET6, numbers.c_str(), &v6.sin6_addr);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = port_number;
  address.length = sizeof(v6);
  return address;
}

template <typename T>
bool SetOption(int fd, int level, int option, const T& value) {
  return setsockopt(fd, level, option, &value, sizeof(value)) == 0;
}

bool Join(int fd, const sockaddr_in& group, const Interface& interface) {
  ip_mreqn membership = {};
  membership.imr_multiaddr = group.sin_addr;
  if (inet_pton(AF_INET, interface.address.c_str(), &membership.imr_address) != 1) {
    errno = EADDRNOTAVAIL;
    return false;
  }
  return SetOption(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, membership) &&
         SetOption(fd, IPPROTO_IP, IP_MULTICAST_IF, membership) &&
         SetOption(fd, IPPROTO_IP, IP_MULTICAST_LOOP, int{1});
}

bool Join(int fd, const sockaddr_in6& group, const Interface& interface) {
  ipv6_mreq membership = {};
  membership.ipv6mr_multiaddr = group.sin6_addr;
  membership.ipv6mr_interface = interface.index;
  return SetOption(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, membership) &&
         SetOption(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, int(interface.index)) &&
         SetOption(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, int{1}) &&
         SetOption(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, int{1});
}

// Bound to the group's own address, the socket gets nothing that was sent to another group.
bool Configure(int fd, base::SocketAddress& group, const Interface& interface) {
  if (!SetOption(fd, SOL_SOCKET, SO_REUSEADDR, int{1}) ||
      bind(fd, group.get(), group.length) != 0) {
    return false;
  }
  return group.family() == AF_INET
             ? Join(fd, *reinterpret_cast<const sockaddr_in*>(group.get()), interface)
             : Join(fd, *reinterpret_cast<const sockaddr_in6*>(group.get()), interface);
}

}  // namespace

absl::StatusOr<MulticastSocket> MulticastSocket::Open(const std::string& group, int port) {
  if (!base::IsMulticastAddress(group)) {
    return ArgumentError(absl::StrCat("'", group,
                                      "' is not a multicast address: those go from 224.0.0.0 to "
                                      "239.255.255.255, where 239.* are free for use on a site, "
                                      "and begin with ff in IPv6, where ff15: are"));
  }
  const std::vector<std::string> parts = absl::StrSplit(group, absl::MaxSplits('%', 1));
  const std::string name = parts.size() == 2 ? parts[1] : "";
  base::SocketAddress address = AddressOf(parts[0], port);
  const auto interface = InterfaceTowards(parts[0], name, address);
  if (!interface.ok()) {
    return Annotate(interface.status(), absl::StrCat("multicast group ", group, ", port ", port));
  }
  if (address.family() == AF_INET6) {
    // Where the group's scope is the link, each interface has a group of this address.
    reinterpret_cast<sockaddr_in6*>(address.get())->sin6_scope_id = interface->index;
  }
  const int fd = socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Failed("cannot open a socket", group, port, errno);
  auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  if (!Configure(fd, address, *interface)) {
    return Failed(absl::StrCat("cannot join on the interface of ", interface->address), group, port,
                  errno);
  }
  std::move(close_fd).Cancel();
  return MulticastSocket(fd, group, port, address, interface->address);
}

MulticastSocket::MulticastSocket(int fd, std::string group, int port,
                                 const base::SocketAddress& address, std::string local_address)
    : fd_(fd),
      group_(std::move(group)),
      port_(port),
      address_(address),
      local_address_(std::move(local_address)) {}

MulticastSocket::MulticastSocket(MulticastSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      group_(std::move(other.group_)),
      port_(other.port_),
      address_(other.address_),
      local_address_(std::move(other.local_address_)) {}

MulticastSocket::~MulticastSocket() {
  if (fd_ >= 0) close(fd_);
}

absl::Status MulticastSocket::Send(absl::string_view datagram) const {
  if (sendto(fd_, datagram.data(), datagram.size(), 0, address_.get(), address_.length) >= 0) {
    return absl::OkStatus();
  }
  return Failed(absl::StrCat("cannot send from ", local_address_), group_, port_, errno);
}

absl::StatusOr<std::optional<MulticastSocket::Datagram>> MulticastSocket::Receive(
    absl::Duration timeout) const {
  pollfd poll_fd = {fd_, POLLIN, 0};
  const int64_t ms = absl::ToInt64Milliseconds(absl::Ceil(timeout, absl::Milliseconds(1)));
  const int ready = poll(&poll_fd, 1, static_cast<int>(std::min<int64_t>(ms, INT_MAX)));
  if (ready < 0 && errno != EINTR) return Failed("cannot wait", group_, port_, errno);
  if (ready <= 0) return std::nullopt;
  std::string buffer(kMaxDatagram, '\0');  // Longer than any announcement; Open refuses others.
  base::SocketAddress from;
  const ssize_t size = recvfrom(fd_, &buffer[0], buffer.size(), 0, from.get(), &from.length);
  if (size < 0) {
    if (errno == EAGAIN || errno == EINTR) return std::nullopt;
    return Failed("cannot receive", group_, port_, errno);
  }
  buffer.resize(static_cast<size_t>(size));
  return Datagram{std::move(buffer), base::NumericHost(from)};
}

}  // namespace syncline::join
