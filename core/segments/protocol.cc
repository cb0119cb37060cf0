#include "core/segments/protocol.h"

#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace syncline::segments {

base::SocketAddress ManagerAddress(absl::string_view manager) {
  const std::string name = absl::StrCat("syncline/segments/", manager);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // After a zero: in the abstract name space, where nothing is left behind.
  const size_t size = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), size);
  base::SocketAddress result;
  std::memcpy(&result.storage, &address, sizeof address);
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return result;
}

bool IsOwnUser(int connection) {
  ucred peer;
  socklen_t length = sizeof peer;
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == geteuid();
}

}  // namespace syncline::segments
