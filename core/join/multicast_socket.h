// A UDP socket that is in one multicast group.
#ifndef SYNCLINE_CORE_JOIN_MULTICAST_SOCKET_H_
#define SYNCLINE_CORE_JOIN_MULTICAST_SOCKET_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/sockets.h"

namespace syncline::join {

// Sends datagrams to the group, and receives what any process sends to it, those of this host
// included. Datagrams stay in the local network (a TTL, or hop limit, of 1). The socket uses the
// interface that the group names, as in "ff15::7%eth1" (IPv6 alone); else the one that routes to
// the group; else another that takes part in multicast; and for IPv4, where there is none,
// loopback. It owns its descriptor. Not thread-safe. Errors are of kind kNetwork and name the
// group; a malformed group is an ArgumentError.
class MulticastSocket {
 public:
  struct Datagram {
    std::string bytes;
    std::string source;  // The sender's address, for messages.
  };

  // `group` is the text of an IPv4 or IPv6 multicast address. Others may have the same port open.
  static absl::StatusOr<MulticastSocket> Open(const std::string& group, int port);

  MulticastSocket(MulticastSocket&& other) noexcept;
  MulticastSocket& operator=(MulticastSocket&&) = delete;
  ~MulticastSocket();

  // This host's address on the interface that is used.
  const std::string& local_address() const { return local_address_; }

  absl::Status Send(absl::string_view datagram) const;

  // The next datagram; nothing if none comes within `timeout`.
  absl::StatusOr<std::optional<Datagram>> Receive(absl::Duration timeout) const;

 private:
  MulticastSocket(int fd, std::string group, int port, const base::SocketAddress& address,
                  std::string local_address);

  int fd_;
  std::string group_;
  int port_;
  base::SocketAddress address_;  // Of the group.
  std::string local_address_;
};

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_MULTICAST_SOCKET_H_
