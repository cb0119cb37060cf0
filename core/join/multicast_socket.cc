#include "core/join/multicast_socket.h"

#include <arpa/inet.h>
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
#include "syncline/status.h"

namespace syncline::join {
namespace {

constexpr size_t kMaxDatagram = 65536;

absl::Status Failed(absl::string_view what, absl::string_view group, int port, int error) {
  return NetworkError(
      absl::StrCat("multicast group ", group, ":", port, ": ", what, ": ", std::strerror(error)));
}

// Joins `group` on the interface that has the address `local`.
bool Configure(int fd, const sockaddr_in& address, const in_addr& local) {
  const int on = 1;
  ip_mreqn membership = {};
  membership.imr_multiaddr = address.sin_addr;
  membership.imr_address = local;
  // Bound to the group's own address, the socket gets nothing that was sent to another group.
  return setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
         bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
         setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof(membership)) == 0 &&
         setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &membership, sizeof(membership)) == 0 &&
         setsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &on, sizeof(on)) == 0;
}

sockaddr_in AddressOf(const std::string& group, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, group.c_str(), &address.sin_addr);
  return address;
}

}  // namespace

absl::StatusOr<MulticastSocket> MulticastSocket::Open(const std::string& group, int port) {
  in_addr parsed = {};
  if (!base::IsMulticastAddress(group) || inet_pton(AF_INET, group.c_str(), &parsed) != 1) {
    return ArgumentError(absl::StrCat("'", group,
                                      "' is not an IPv4 multicast address: those go from 224.0.0.0 "
                                      "to 239.255.255.255, and 239.* are free for use on a site"));
  }
  // A host may have several interfaces: sends and receives on the one that routes to the group.
  const std::string local_address = base::AddressTowards(group).value_or("127.0.0.1");
  in_addr local = {};
  if (inet_pton(AF_INET, local_address.c_str(), &local) != 1) {
    return NetworkError(absl::StrCat("'", local_address, "' is not an IPv4 address"));
  }
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Failed("cannot open a socket", group, port, errno);
  auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  if (!Configure(fd, AddressOf(group, port), local)) {
    return Failed(absl::StrCat("cannot join on the interface of ", local_address), group, port,
                  errno);
  }
  std::move(close_fd).Cancel();
  return MulticastSocket(fd, group, port, local_address);
}

MulticastSocket::MulticastSocket(int fd, std::string group, int port, std::string local_address)
    : fd_(fd), group_(std::move(group)), port_(port), local_address_(std::move(local_address)) {}

MulticastSocket::MulticastSocket(MulticastSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      group_(std::move(other.group_)),
      port_(other.port_),
      local_address_(std::move(other.local_address_)) {}

MulticastSocket::~MulticastSocket() {
  if (fd_ >= 0) close(fd_);
}

absl::Status MulticastSocket::Send(absl::string_view datagram) const {
  const sockaddr_in to = AddressOf(group_, port_);
  if (sendto(fd_, datagram.data(), datagram.size(), 0, reinterpret_cast<const sockaddr*>(&to),
             sizeof(to)) >= 0) {
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
  sockaddr_in from = {};
  socklen_t length = sizeof(from);
  const ssize_t size =
      recvfrom(fd_, &buffer[0], buffer.size(), 0, reinterpret_cast<sockaddr*>(&from), &length);
  if (size < 0) {
    if (errno == EAGAIN || errno == EINTR) return std::nullopt;
    return Failed("cannot receive", group_, port_, errno);
  }
  buffer.resize(static_cast<size_t>(size));
  char source[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &from.sin_addr, source, sizeof(source));
  return Datagram{std::move(buffer), source};
}

}  // namespace syncline::join
