#include "core/base/host.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/process_state.h"
#include "core/base/resolve.h"
#include "core/base/sockets.h"
#include "core/base/unique_fd.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

std::string NetworkNamespace() {
  char link[64] = {};
  return readlink("/proc/self/ns/net", link, sizeof(link) - 1) > 0 ? link : "-";
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, HOST_NAME_MAX) == 0 ? name : "unknown";
}

}  // namespace

std::string NumericHost(const SocketAddress& address) {
  char text[NI_MAXHOST] = {};
  getnameinfo(address.get(), address.length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

absl::StatusOr<Peer> IdentifyThisProcess() {
  Peer self = ThisPeer();
  SYNCLINE_ASSIGN_OR_RETURN(const std::string boot, BootId());
  SYNCLINE_ASSIGN_OR_RETURN(const ProcessState process, ReadProcess(self.pid));
  self.identity = absl::StrCat(boot, "/", NetworkNamespace());
  self.pid_namespace = PidNamespace();
  self.started = process.started;
  return self;
}

Peer ThisPeer() {
  Peer self;
  self.host = HostName();
  self.pid = getpid();
  return self;
}

absl::StatusOr<std::string> BootId() {
  constexpr char kPath[] = "/proc/sys/kernel/random/boot_id";
  const UniqueFd file(open(kPath, O_RDONLY | O_CLOEXEC));
  char text[64];
  const ssize_t size = file.valid() ? read(file.get(), text, sizeof(text)) : -1;
  if (size <= 0) return BackendError(absl::StrCat("cannot read ", kPath, ": ", strerror(errno)));
  return std::string(absl::StripTrailingAsciiWhitespace(absl::string_view(text, size)));
}

absl::StatusOr<std::string> AddressTowards(absl::string_view host, const Deadline& deadline) {
  // The port does not matter, but 0 is none to connect to.
  SYNCLINE_ASSIGN_OR_RETURN(const auto addresses,
                            Resolve(std::string(host), {/*port=*/9}, deadline));
  for (const SocketAddress& address : addresses) {
    // Connecting a datagram socket picks a route and sends nothing.
    const UniqueFd fd(socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd.valid() || connect(fd.get(), address.get(), address.length) != 0) continue;
    SocketAddress local;
    if (getsockname(fd.get(), local.get(), &local.length) != 0) continue;
    std::string text = NumericHost(local);
    if (!text.empty()) return text;
  }
  return NetworkError(absl::StrCat("no network interface of this host reaches '", host,
                                   "'; check that host's address and this host's routes"));
}

absl::StatusOr<std::string> AddressOfDefaultInterface() {
  // An address of the documentation's network, which no route but the default one leads to.
  absl::StatusOr<std::string> routed = AddressTowards("192.0.2.1");
  if (routed.ok()) return routed;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) == 0) {
    const auto free_interfaces = absl::MakeCleanup([&] { freeifaddrs(interfaces); });
    for (const ifaddrs* it = interfaces; it != nullptr; it = it->ifa_next) {
      if (it->ifa_addr == nullptr || it->ifa_addr->sa_family != AF_INET) continue;
      if ((it->ifa_flags & IFF_UP) == 0 || (it->ifa_flags & IFF_LOOPBACK) != 0) continue;
      char text[INET_ADDRSTRLEN];
      const auto* address = reinterpret_cast<const sockaddr_in*>(it->ifa_addr);
      if (inet_ntop(AF_INET, &address->sin_addr, text, sizeof(text)) != nullptr) return text;
    }
  }
  return NetworkError("this host has no network interface but the loopback");
}

absl::StatusOr<std::string> FirstAddress(absl::string_view host, const Deadline& deadline) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto addresses, Resolve(std::string(host), {}, deadline));
  return NumericHost(addresses.front());
}

bool IsMulticastAddress(absl::string_view host) {
  const std::string text(host.substr(0, host.find('%')));  // Without an IPv6 scope.
  in_addr v4 = {};
  in6_addr v6 = {};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return IN_MULTICAST(ntohl(v4.s_addr));
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_MULTICAST(&v6);
}

}  // namespace syncline::base
