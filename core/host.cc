#include "core/host.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/status.h"

namespace syncline {
namespace {

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string NetworkNamespace() {
  char link[64] = {};
  return readlink("/proc/self/ns/net", link, sizeof(link) - 1) > 0 ? link : "";
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, HOST_NAME_MAX) == 0 ? name : "unknown";
}

struct FreeAddresses {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// At least one.
absl::StatusOr<Addresses> Resolve(absl::string_view host, int socket_type) {
  addrinfo hints = {};
  hints.ai_socktype = socket_type;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(std::string(host).c_str(), "9", &hints, &found);
  if (error != 0) {
    return NetworkError(absl::StrCat("cannot resolve host '", host, "': ", gai_strerror(error),
                                     "; check the name, or give an address"));
  }
  return Addresses(found);
}

// Empty if it has none.
std::string Text(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = {};
  getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

}  // namespace

std::string Peer::ToString() const { return absl::StrCat("host ", host, ", pid ", pid); }

std::string Peer::Serialize() const { return absl::StrCat(pid, " ", identity, " ", host); }

absl::StatusOr<Peer> Peer::Parse(absl::string_view text) {
  std::vector<std::string> fields = absl::StrSplit(text, absl::MaxSplits(' ', 2));
  Peer peer;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &peer.pid)) {
    return StoreError(absl::StrCat("'", text, "' does not describe a process: do two jobs, or two ",
                                   "versions of Syncline, share a store?"));
  }
  peer.identity = fields[1];
  peer.host = fields[2];
  return peer;
}

Peer ThisPeer() { return {HostName(), absl::StrCat(BootId(), "/", NetworkNamespace()), getpid()}; }

absl::StatusOr<std::string> AddressTowards(absl::string_view host) {
  SYNCLINE_ASSIGN_OR_RETURN(const Addresses found, Resolve(host, SOCK_DGRAM));
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    // Connecting a datagram socket picks a route and sends nothing.
    const int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    auto close_fd = absl::MakeCleanup([fd] { close(fd); });
    sockaddr_storage local = {};
    socklen_t length = sizeof(local);
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) continue;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) != 0) continue;
    std::string text = Text(reinterpret_cast<sockaddr*>(&local), length);
    if (!text.empty()) return text;
  }
  return NetworkError(absl::StrCat("no network interface of this host reaches '", host,
                                   "'; check that host's address and this host's routes"));
}

absl::StatusOr<std::string> FirstAddress(absl::string_view host) {
  SYNCLINE_ASSIGN_OR_RETURN(const Addresses found, Resolve(host, SOCK_STREAM));
  return Text(found->ai_addr, found->ai_addrlen);
}

bool IsMulticastAddress(absl::string_view host) {
  const std::string text(host.substr(0, host.find('%')));  // Without an IPv6 scope.
  in_addr v4 = {};
  in6_addr v6 = {};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return IN_MULTICAST(ntohl(v4.s_addr));
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_MULTICAST(&v6);
}

}  // namespace syncline
