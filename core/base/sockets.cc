#include "core/base/sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/errno_payload.h"
#include "syncline/check.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

// How long to wait before the next attempt to connect to a Unix-domain listener whose backlog is
// full: nothing reports when there is room again.
constexpr absl::Duration kShortestBackoff = absl::Milliseconds(1);
constexpr absl::Duration kLongestBackoff = absl::Milliseconds(20);

// poll(2) counts an int of milliseconds.
constexpr absl::Duration kLongestPoll = absl::Minutes(1);

// What the user can do about `error`, if anything.
std::string Remedy(int error) {
  switch (error) {
    case EMFILE: {
      rlimit limit = {};
      getrlimit(RLIMIT_NOFILE, &limit);
      return absl::StrCat("; this process may have ", limit.rlim_cur,
                          " descriptors open: raise the limit (ulimit -n)");
    }
    case ENFILE:
      return "; all processes of this host have too many files open: raise fs.file-max";
    case ENOBUFS:
    case ENOMEM:
      return "; the kernel has no memory for sockets: raise net.ipv4.tcp_mem or the memory limit "
             "of the container";
    case EADDRNOTAVAIL:
      return "; is the address one of this host, and is a port free "
             "(net.ipv4.ip_local_port_range)?";
    default:
      return "";
  }
}

absl::Status Failed(absl::string_view what, int error) {
  return WithErrno(
      NetworkError(absl::StrCat("cannot ", what, ": ", std::strerror(error), Remedy(error))),
      error);
}

absl::Status TimedOut(absl::string_view what, const Deadline& deadline) {
  return TimeoutError(absl::StrCat(what, " within ", absl::FormatDuration(deadline.timeout())));
}

// Returns whether an event came before the deadline.
absl::StatusOr<bool> PollUntil(absl::Span<pollfd> entries, const Deadline& deadline) {
  while (true) {
    const absl::Duration slice = InterruptScope::IsOpen() ? kInterruptInterval : kLongestPoll;
    const absl::Duration left = std::min(deadline.Remaining(), slice);
    // Rounded up: a wait that is cut to 0 ms would spin through its last millisecond.
    const int64_t ms = absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)));
    const int ready = poll(entries.data(), entries.size(), static_cast<int>(ms));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return Failed("wait for a socket", errno);
    if (deadline.Expired()) return false;
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
  }
}

// A timeout says that `what` did not happen.
absl::Status WaitFor(int fd, short events, absl::string_view what, const Deadline& deadline) {
  pollfd entry = {fd, events, 0};
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_ready, PollUntil(absl::MakeSpan(&entry, 1), deadline));
  return is_ready ? absl::OkStatus() : TimedOut(what, deadline);
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// Whether accept(2) failed because of one connection, which is gone now, and not because of the
// listener. Linux reports errors of the connection's network as those of accept.
bool IsErrorOfConnection(int error) {
  switch (error) {
    case EINTR:
    case ECONNABORTED:
    case EPERM:  // A firewall forbids it.
    case EPROTO:
    case ENOPROTOOPT:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENONET:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::StatusOr<UniqueFd> OpenSocket(int family, int type) {
  UniqueFd fd(socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Failed("open a socket", errno);
  return fd;
}

absl::Status Poll(absl::Span<pollfd> entries, const Deadline& deadline) {
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_ready, PollUntil(entries, deadline));
  return is_ready ? absl::OkStatus() : TimedOut("nothing happened", deadline);
}

absl::Status WaitReadable(int fd, const Deadline& deadline) {
  return WaitFor(fd, POLLIN, "nothing came", deadline);
}

absl::Status WaitWritable(int fd, const Deadline& deadline) {
  return WaitFor(fd, POLLOUT, "nothing could be sent", deadline);
}

absl::StatusOr<UniqueFd> TryAccept(int listener) {
  SYNCLINE_DCHECK((fcntl(listener, F_GETFL) & O_NONBLOCK) != 0);
  UniqueFd connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (connection.valid() || WouldBlock(errno) || IsErrorOfConnection(errno)) return connection;
  return Failed("accept a connection", errno);
}

absl::StatusOr<UniqueFd> Accept(int listener, const Deadline& deadline) {
  while (!deadline.Expired()) {
    SYNCLINE_RETURN_IF_ERROR(WaitFor(listener, POLLIN, "nobody connected", deadline));
    SYNCLINE_ASSIGN_OR_RETURN(UniqueFd connection, TryAccept(listener));
    if (connection.valid()) return connection;
  }
  return TimedOut("nobody connected", deadline);
}

absl::StatusOr<UniqueFd> Connect(const SocketAddress& address, int type, const Deadline& deadline) {
  if (address.family() != AF_UNIX) {
    SYNCLINE_ASSIGN_OR_RETURN(UniqueFd socket, BeginConnect(address, type));
    SYNCLINE_RETURN_IF_ERROR(FinishConnect(socket.get(), deadline));
    return socket;
  }
  SYNCLINE_ASSIGN_OR_RETURN(UniqueFd socket, OpenSocket(address.family(), type));
  absl::Duration backoff = kShortestBackoff;
  while (connect(socket.get(), address.get(), address.length) != 0) {
    // After a signal the kernel goes on connecting.
    if (errno == EINPROGRESS || errno == EINTR) {
      SYNCLINE_RETURN_IF_ERROR(FinishConnect(socket.get(), deadline));
      break;
    }
    if (!WouldBlock(errno)) return Failed("connect", errno);
    if (deadline.Expired())
      return TimedOut("no connection: the listener's backlog is full", deadline);
    SYNCLINE_RETURN_IF_ERROR(SleepInterruptibly(std::min(deadline.Remaining(), backoff)));
    backoff = std::min(2 * backoff, kLongestBackoff);
  }
  return socket;
}

absl::StatusOr<UniqueFd> BeginConnect(const SocketAddress& address, int type) {
  SYNCLINE_ASSIGN_OR_RETURN(UniqueFd socket, OpenSocket(address.family(), type));
  const bool has_begun = connect(socket.get(), address.get(), address.length) == 0 ||
                         errno == EINPROGRESS || errno == EINTR;
  if (!has_begun) return Failed("connect", errno);
  return socket;
}

absl::Status FinishConnect(int socket, const Deadline& deadline) {
  SYNCLINE_RETURN_IF_ERROR(WaitFor(socket, POLLOUT, "no connection", deadline));
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  return error == 0 ? absl::OkStatus() : Failed("connect", error);
}

void SetNoDelay(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

absl::Status SendAll(int socket, const void* data, size_t size, const Deadline& deadline) {
  const char* const bytes = static_cast<const char*>(data);
  for (size_t sent = 0; sent < size;) {
    const ssize_t count = send(socket, bytes + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      sent += static_cast<size_t>(count);
    } else if (WouldBlock(errno)) {
      SYNCLINE_RETURN_IF_ERROR(
          WaitFor(socket, POLLOUT, absl::StrCat(sent, " of ", size, " bytes were sent"), deadline));
    } else if (errno != EINTR) {
      return Failed("send", errno);
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(int socket, void* data, size_t size, const Deadline& deadline) {
  char* const bytes = static_cast<char*>(data);
  for (size_t received = 0; received < size;) {
    const ssize_t count = recv(socket, bytes + received, size - received, MSG_DONTWAIT);
    if (count > 0) {
      received += static_cast<size_t>(count);
    } else if (count == 0) {
      return NetworkError(
          absl::StrCat("the connection was closed after ", received, " of ", size, " bytes"));
    } else if (WouldBlock(errno)) {
      SYNCLINE_RETURN_IF_ERROR(
          WaitFor(socket, POLLIN, absl::StrCat(received, " of ", size, " bytes came"), deadline));
    } else if (errno != EINTR) {
      return Failed("receive", errno);
    }
  }
  return absl::OkStatus();
}

}  // namespace syncline::base
