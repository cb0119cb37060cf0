#include "tests/backends/strangers.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/listening.h"
#include "core/base/sockets.h"

namespace syncline {
namespace {

// What this makes a rank do may close the socket on another thread before this thread is done.
// ThreadSanitizer, which knows send(2), does not know that the bytes come first.
bool Write(int socket, const std::string& bytes) {
  return syscall(SYS_sendto, socket, bytes.data(), bytes.size(), MSG_NOSIGNAL, nullptr, 0) ==
         static_cast<long>(bytes.size());
}

}  // namespace

std::vector<std::pair<std::string, int>> OwnSockets() {
  std::vector<std::pair<std::string, int>> sockets;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* const entry = readdir(folder)) {
    char target[64] = {};
    const std::string path = absl::StrCat("/proc/self/fd/", entry->d_name);
    int descriptor;
    if (readlink(path.c_str(), target, sizeof(target) - 1) < 0) continue;
    const std::string text = target;
    if (text.rfind("socket:[", 0) != 0 || !absl::SimpleAtoi(entry->d_name, &descriptor)) continue;
    sockets.emplace_back(text.substr(8, text.size() - 9), descriptor);
  }
  closedir(folder);
  return sockets;
}

int WriteToNewSockets(const std::vector<std::pair<std::string, int>>& before,
                      const std::string& bytes) {
  int written = 0;
  for (const auto& [inode, descriptor] : OwnSockets()) {
    const bool is_new = std::none_of(before.begin(), before.end(),
                                     [&](const auto& it) { return it.first == inode; });
    if (!is_new) continue;
    if (Write(descriptor, bytes)) ++written;
  }
  return written;
}

int WriteToAccepted(int port, const std::string& bytes) {
  int written = 0;
  for (const auto& [inode, descriptor] : OwnSockets()) {
    base::SocketAddress own, peer;
    if (getsockname(descriptor, own.get(), &own.length) != 0 || own.family() != AF_INET ||
        getpeername(descriptor, peer.get(), &peer.length) != 0 || base::PortOf(own) != port) {
      continue;
    }
    if (Write(descriptor, bytes)) ++written;
  }
  return written;
}

base::UniqueFd TryToConnect(int port) {
  base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    socket.reset();
  }
  return socket;
}

void SendText(const base::UniqueFd& socket, const std::string& text) {
  static_cast<void>(send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL));
}

}  // namespace syncline
