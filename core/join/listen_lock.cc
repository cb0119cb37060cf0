#include "core/join/listen_lock.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace syncline::join {

ListenLock::ListenLock(absl::string_view host, int port)
    : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  // A first byte of zero: a name in the network namespace, not in the file system.
  const std::string text = absl::StrCat("syncline serves ", host, ":", port);
  text.copy(name.sun_path + 1, sizeof(name.sun_path) - 1);
  is_held_ = fd_ >= 0 && bind(fd_, reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0;
}

ListenLock::~ListenLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace syncline::join
