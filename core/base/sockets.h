// Socket calls that end in time: each takes a Deadline, and each failure says what to do about it.
//
// Product code calls accept, connect, poll and send through these functions, which are the one
// code that decides what a signal, a stranger or a lack of descriptors does to a wait:
//
//   * A signal handler that returns does not end a wait and does not extend it.
//   * A wait that passes its deadline returns a TimeoutError. It looks once, without waiting, if
//     the deadline has already passed; only Accept does not, see there.
//   * A lack of descriptors or memory is a NetworkError that names the limit to raise. It is never
//     retried: the pending connection would make poll return at once, and the loop spin.
//   * The error of a system call has its errno (errno_payload.h).
//   * A socket is opened non-blocking and close-on-exec. A write to a closed connection is an
//     error, not a SIGPIPE.
//
// The functions work on any stream or sequenced-packet socket, and are thread-safe as the system
// calls are.
#ifndef SYNCLINE_CORE_BASE_SOCKETS_H_
#define SYNCLINE_CORE_BASE_SOCKETS_H_

#include <poll.h>
#include <sys/socket.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/unique_fd.h"
#include "syncline/deadline.h"

namespace syncline::base {

// An address as the kernel takes it.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = sizeof(storage);

  int family() const { return storage.ss_family; }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// A new socket of `type`, such as SOCK_STREAM.
absl::StatusOr<UniqueFd> OpenSocket(int family, int type);

// Waits until poll(2) reports an event for one of `entries`, and leaves the events in them.
absl::Status Poll(absl::Span<pollfd> entries, const Deadline& deadline);

// Waits until `fd` is readable or writable, closed by its peer, or in error.
absl::Status WaitReadable(int fd, const Deadline& deadline);
absl::Status WaitWritable(int fd, const Deadline& deadline);

// Accepts one connection. Requires that `listener` is non-blocking.
//
// A passed deadline is a TimeoutError even while connections are pending, so that a caller who
// accepts in a loop and turns strangers away ends on time however many there are.
absl::StatusOr<UniqueFd> Accept(int listener, const Deadline& deadline);

// Accepts one connection if one is pending; otherwise returns an invalid UniqueFd. Does not wait.
// For event loops. Requires that `listener` is non-blocking.
absl::StatusOr<UniqueFd> TryAccept(int listener);

// Connects a new socket of `type` to `address`. Waits while a Unix-domain listener's backlog is
// full. A refused connection is an error at once, not retried.
absl::StatusOr<UniqueFd> Connect(const SocketAddress& address, int type, const Deadline& deadline);

// The two halves of Connect, for a caller who waits in slices: not of Unix-domain sockets.
absl::StatusOr<UniqueFd> BeginConnect(const SocketAddress& address, int type);
absl::Status FinishConnect(int socket, const Deadline& deadline);

// Has the kernel send each message of a TCP socket at once (TCP_NODELAY). Otherwise it holds back a
// short one until the one before is acknowledged.
void SetNoDelay(int socket);

// Sends all `size` bytes, or as much as fits until the deadline; what the peer has received is
// unknown after an error.
absl::Status SendAll(int socket, const void* data, size_t size, const Deadline& deadline);

// Receives exactly `size` bytes. A connection that ends before is a NetworkError.
absl::Status ReceiveAll(int socket, void* data, size_t size, const Deadline& deadline);

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_SOCKETS_H_
