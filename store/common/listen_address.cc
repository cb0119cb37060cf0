#include "store/common/listen_address.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/errno_payload.h"
#include "core/base/listening.h"
#include "core/base/resolve.h"
#include "core/base/sockets.h"
#include "syncline/status.h"

namespace syncline::store {
namespace {

// The names that /proc/<pid>/fd shows for the sockets listening on `port`: "socket:[4711]".
// Columns of /proc/net/tcp, see proc(5): 1 is the local address, 3 the state, 9 the inode.
std::set<std::string> ListeningSockets(int port) {
  constexpr size_t kColumns = 10;
  std::set<std::string> sockets;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    for (std::string line; std::getline(in, line);) {
      const std::vector<std::string> columns = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (columns.size() < kColumns || columns[3] != "0A") continue;
      const std::vector<std::string> address = absl::StrSplit(columns[1], ':');
      int local_port = 0;
      if (address.size() != 2 || !absl::SimpleHexAtoi(address[1], &local_port)) continue;
      if (local_port == port) sockets.insert(absl::StrCat("socket:[", columns[9], "]"));
    }
  }
  return sockets;
}

bool HasDescriptor(int pid, const std::set<std::string>& names) {
  const std::string folder = absl::StrCat("/proc/", pid, "/fd");
  std::unique_ptr<DIR, int (*)(DIR*)> descriptors(opendir(folder.c_str()), &closedir);
  if (descriptors == nullptr) return false;
  while (const dirent* entry = readdir(descriptors.get())) {
    char target[64];
    const ssize_t size =
        readlink(absl::StrCat(folder, "/", entry->d_name).c_str(), target, sizeof(target));
    if (size > 0 && names.count(std::string(target, size)) != 0) return true;
  }
  return false;
}

absl::Status ListenError(const std::string& host, int port, int error) {
  const auto cannot = [&](const auto&... why) {
    return base::WithErrno(
        NetworkError(absl::StrCat("cannot listen on ", JoinHostPort(host, port), ": ", why...)),
        error);
  };
  switch (error) {
    case EADDRINUSE: {
      const std::optional<int> pid = FindListener(port);
      return cannot("address already in use", pid.has_value() ? absl::StrCat(" by pid ", *pid) : "",
                    "; pass port 0 to let the system choose");
    }
    case EADDRNOTAVAIL:
      return cannot("this host does not have that address; pass one of its own, such as 127.0.0.1");
    case EACCES:
      return cannot("no permission; pass port 0 to let the system choose");
    default:
      return cannot(std::strerror(error));
  }
}

base::SocketAddress EveryAddress(int family) {
  base::SocketAddress address;  // All zeros is INADDR_ANY, and in6addr_any.
  address.storage.ss_family = static_cast<sa_family_t>(family);
  address.length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return address;
}

// Adds a socket for `address` and listener.port, which is set if it is 0.
absl::Status ListenOn(base::SocketAddress address, Listener& listener) {
  base::SetPort(address, listener.port);
  SYNCLINE_ASSIGN_OR_RETURN(base::UniqueFd fd, base::ListenOn(address, /*takes_ipv4=*/true));
  listener.port = base::PortOf(address);
  listener.sockets.push_back(std::move(fd));
  return absl::OkStatus();
}

}  // namespace

std::string JoinHostPort(absl::string_view host, int port) {
  const bool is_v6 = host.find(':') != absl::string_view::npos;
  return is_v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<Listener> Listen(const std::string& host, int port, const Deadline& deadline) {
  Listener listener;
  listener.port = port;
  absl::Status error;
  if (host == "0.0.0.0" || host == "::") {
    // An IPv6 socket for all addresses takes IPv4 connections too, where there is IPv6.
    error = ListenOn(EveryAddress(AF_INET6), listener);
    if (!error.ok()) error = ListenOn(EveryAddress(AF_INET), listener);
  } else {
    base::ResolveOptions to_listen;
    to_listen.is_to_listen = true;
    auto addresses = base::Resolve(host, to_listen, deadline);
    if (!addresses.ok()) {
      return Annotate(addresses.status(),
                      absl::StrCat("cannot listen on ", JoinHostPort(host, port)));
    }
    for (const base::SocketAddress& address : *addresses) {
      const absl::Status status = ListenOn(address, listener);
      if (!status.ok()) error = status;
    }
  }
  if (!listener.sockets.empty()) return listener;
  const int number = base::ErrnoOf(error);
  const bool range_is_taken = port == 0 && number == EADDRINUSE;
  if (number != 0 && !range_is_taken) return ListenError(host, port, number);
  return Annotate(error, absl::StrCat("cannot listen on ", JoinHostPort(host, port)));
}

absl::string_view WithoutAdvice(absl::string_view listen_error) {
  return listen_error.substr(0, listen_error.find("; pass "));
}

absl::StatusOr<Listener> AdoptListener(base::UniqueFd socket, int port) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  base::SocketAddress address;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0 ||
      getsockname(socket.get(), address.get(), &address.length) != 0) {
    return ArgumentError(absl::StrCat("descriptor ", socket.get(), " is no socket that listens"));
  }
  const int bound = base::PortOf(address);
  if (port != 0 && port != bound) {
    return ArgumentError(absl::StrCat("the socket listens on port ", bound, ", not on ", port));
  }
  const int flags = fcntl(socket.get(), F_GETFL);
  if (flags < 0 || fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
      fcntl(socket.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return base::WithErrno(NetworkError(absl::StrCat("cannot take over descriptor ", socket.get(),
                                                     ": ", std::strerror(errno))),
                           errno);
  }
  Listener listener;
  listener.port = bound;
  listener.sockets.push_back(std::move(socket));
  return listener;
}

std::optional<int> FindListener(int port) {
  const std::set<std::string> sockets = ListeningSockets(port);
  std::unique_ptr<DIR, int (*)(DIR*)> processes(opendir("/proc"), &closedir);
  if (sockets.empty() || processes == nullptr) return std::nullopt;
  while (const dirent* entry = readdir(processes.get())) {
    int pid = 0;
    if (absl::SimpleAtoi(entry->d_name, &pid) && HasDescriptor(pid, sockets)) return pid;
  }
  return std::nullopt;
}

}  // namespace syncline::store
