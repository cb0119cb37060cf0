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
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "core/base/host.h"
#include "core/base/resolve.h"
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

// The interface with `address`, an IPv6 address. One that is valid only within the link comes
// without its interface on other hosts, so an address of wider scope takes its place.
absl::StatusOr<Interface> FindInterface(const std::string& address) {
  in6_addr wanted = {};
  const std::string without_scope = address.substr(0, address.find('%'));
  if (inet_pton(AF_INET6, without_scope.c_str(), &wanted) != 1) {
    return NetworkError(absl::StrCat("'", address, "' is not an IPv6 address"));
  }
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    return NetworkError(absl::StrCat("cannot list the interfaces: ", std::strerror(errno)));
  }
  const auto free_all = absl::MakeCleanup([all] { freeifaddrs(all); });
  const auto address_of = [](const ifaddrs& entry) -> const in6_addr* {
    if (entry.ifa_addr == nullptr || entry.ifa_addr->sa_family != AF_INET6) return nullptr;
    return &reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr;
  };
  for (const ifaddrs* found = all; found != nullptr; found = found->ifa_next) {
    const in6_addr* const at = address_of(*found);
    if (at == nullptr || !IN6_ARE_ADDR_EQUAL(at, &wanted)) continue;
    const unsigned index = if_nametoindex(found->ifa_name);
    if (!IN6_IS_ADDR_LINKLOCAL(&wanted)) return Interface{without_scope, index};
    for (const ifaddrs* other = all; other != nullptr; other = other->ifa_next) {
      const in6_addr* const wider = address_of(*other);
      if (wider == nullptr || IN6_IS_ADDR_LINKLOCAL(wider)) continue;
      if (std::strcmp(other->ifa_name, found->ifa_name) != 0) continue;
      char text[INET6_ADDRSTRLEN] = {};
      inet_ntop(AF_INET6, wider, text, sizeof(text));
      return Interface{text, index};
    }
    return NetworkError(absl::StrCat("interface ", found->ifa_name, " has the address ", address,
                                     " alone, which holds within its link: give it one that other "
                                     "hosts can use"));
  }
  return NetworkError(absl::StrCat("no interface has the address ", address));
}

// A host may have several interfaces: that which routes to the group. Of IPv4 any other will do,
// where none does; and where there is none, loopback reaches the processes of this host.
absl::StatusOr<Interface> InterfaceTowards(const std::string& group, int family) {
  absl::StatusOr<std::string> address = base::AddressTowards(group);
  if (family == AF_INET) {
    if (!address.ok()) address = base::AddressOfDefaultInterface();
    return Interface{std::move(address).value_or("127.0.0.1")};
  }
  SYNCLINE_RETURN_IF_ERROR(address.status());
  return FindInterface(*address);
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
  SYNCLINE_ASSIGN_OR_RETURN(const auto addresses, base::Resolve(group, {port}));
  base::SocketAddress address = addresses.front();
  const auto interface = InterfaceTowards(group, address.family());
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
