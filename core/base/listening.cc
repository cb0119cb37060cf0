#include "core/base/listening.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/errno_payload.h"
#include "core/base/hmac.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

// Of a whole job that joins at once; the kernel's net.core.somaxconn is a limit too.
constexpr int kBacklog = 1 << 15;

constexpr absl::string_view kVariable = "SYNCLINE_PORT_RANGE";

absl::Status ListenError(int error) {
  return WithErrno(NetworkError(absl::StrCat("cannot listen: ", std::strerror(error))), error);
}

// At exactly this address.
absl::StatusOr<UniqueFd> TryToListen(SocketAddress& address, bool takes_ipv4) {
  SYNCLINE_ASSIGN_OR_RETURN(UniqueFd fd, OpenSocket(address.family(), SOCK_STREAM));
  const int on = 1;  // Connections of an earlier server that linger do no harm.
  const int off = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (takes_ipv4 && address.family() == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (bind(fd.get(), address.get(), address.length) != 0 || listen(fd.get(), kBacklog) != 0 ||
      getsockname(fd.get(), address.get(), &address.length) != 0) {
    return ListenError(errno);
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::optional<PortRange>> PortRangeFromEnvironment(
    const EnvironmentLookup& environment) {
  const std::optional<std::string> text = environment(kVariable);
  if (!text.has_value()) return std::optional<PortRange>();
  const std::vector<std::string> ends = absl::StrSplit(*text, '-');
  PortRange range;
  if (ends.size() == 2 && absl::SimpleAtoi(ends[0], &range.first) &&
      absl::SimpleAtoi(ends[1], &range.last) && 0 < range.first && range.first <= range.last &&
      range.last <= 65535) {
    return std::optional(range);
  }
  return ArgumentError(absl::StrCat(kVariable,
                                    " must be two ports with a hyphen between them, as "
                                    "20000-20099, not '",
                                    *text, "'"));
}

int PortOf(const SocketAddress& address) {
  return ntohs(address.family() == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(address.get())->sin_port);
}

void SetPort(SocketAddress& address, int port) {
  const in_port_t value = htons(static_cast<uint16_t>(port));
  if (address.family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address.get())->sin6_port = value;
  } else {
    reinterpret_cast<sockaddr_in*>(address.get())->sin_port = value;
  }
}

absl::StatusOr<UniqueFd> ListenOn(SocketAddress& address, bool takes_ipv4) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::optional<PortRange> range, PortRangeFromEnvironment());
  if (PortOf(address) != 0 || !range.has_value()) return TryToListen(address, takes_ipv4);
  // From one that others do not begin with: many processes of a host choose at the same time.
  const int size = range->last - range->first + 1;
  uint32_t random = 0;
  std::memcpy(&random, RandomBytes(sizeof(random)).data(), sizeof(random));
  const int begin = static_cast<int>(random % static_cast<uint32_t>(size));
  for (int i = 0; i < size; ++i) {
    SocketAddress tried = address;
    SetPort(tried, range->first + (begin + i) % size);
    absl::StatusOr<UniqueFd> fd = TryToListen(tried, takes_ipv4);
    if (!fd.ok() && ErrnoOf(fd.status()) == EADDRINUSE) continue;
    if (fd.ok()) address = tried;
    return fd;
  }
  return WithErrno(NetworkError(absl::StrCat("no port of ", kVariable, " (", range->first, "-",
                                             range->last, ") is free")),
                   EADDRINUSE);
}

}  // namespace syncline::base
