#include "store/listen_address.h"

#include <dirent.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/status.h"

namespace syncline {
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
  const std::string address = JoinHostPort(host, port);
  switch (error) {
    case EADDRINUSE: {
      const std::optional<int> pid = FindListener(port);
      return NetworkError(absl::StrCat("cannot listen on ", address, ": address already in use",
                                       pid.has_value() ? absl::StrCat(" by pid ", *pid) : "",
                                       "; pass port 0 to let the system choose"));
    }
    case EADDRNOTAVAIL:
      return NetworkError(absl::StrCat("cannot listen on ", address,
                                       ": this host does not have that address; pass one of its ",
                                       "own, such as 127.0.0.1"));
    case EACCES:
      return NetworkError(absl::StrCat("cannot listen on ", address, ": no permission",
                                       "; pass port 0 to let the system choose"));
    default:
      return NetworkError(absl::StrCat("cannot listen on ", address, ": ", std::strerror(error)));
  }
}

}  // namespace

std::string JoinHostPort(absl::string_view host, int port) {
  const bool is_v6 = host.find(':') != absl::string_view::npos;
  return is_v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::Status CheckListen(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* addresses = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &addresses);
  if (error != 0) {
    return NetworkError(absl::StrCat("cannot listen on ", JoinHostPort(host, port), ": ",
                                     gai_strerror(error), "; pass one of this host's addresses"));
  }
  const auto free_addresses = absl::MakeCleanup([&] { freeaddrinfo(addresses); });
  int last_error = 0;
  for (const addrinfo* address = addresses; address != nullptr; address = address->ai_next) {
    const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      last_error = errno;
      continue;
    }
    const auto close_fd = absl::MakeCleanup([&] { close(fd); });
    const int on = 1;  // Connections of an earlier server that linger do no harm.
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, 1) == 0) {
      return absl::OkStatus();
    }
    last_error = errno;
  }
  return ListenError(host, port, last_error);
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

}  // namespace syncline
