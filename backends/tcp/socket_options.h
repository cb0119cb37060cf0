// What users can set of the connections between ranks, by the environment.
#ifndef SYNCLINE_BACKENDS_TCP_SOCKET_OPTIONS_H_
#define SYNCLINE_BACKENDS_TCP_SOCKET_OPTIONS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncline::tcp {

// A plain value.
struct SocketOptions {
  // SYNCLINE_TCP_KEEPALIVE, see SilenceLimit.
  absl::Duration silence_limit = absl::InfiniteDuration();
  // SYNCLINE_SOCKET_BUFFER, 4096 to 1 GiB: the bytes that the kernel keeps for each direction of a
  // connection. Unset: as many as it finds of use, up to its own limits (tcp_rmem, tcp_wmem).
  std::optional<int> buffer_bytes;
  // SYNCLINE_TCP_CONGESTION, one of the kernel's tcp_available_congestion_control: how fast it
  // sends. Unset: as the host's administrator has chosen. "cubic" is for networks within a data
  // centre where that is "bbr", which takes twice the time between hosts that are near each other.
  std::optional<std::string> congestion;
  // SYNCLINE_SOCKET_DSCP, 0 to 63: the class of the packets (RFC 2474), for networks that prefer
  // some, or keep some without loss.
  std::optional<int> dscp;
  // SYNCLINE_SOCKET_BUSY_POLL, 0 to 1000000: for how many microseconds a wait looks at the queues
  // of the network card itself (SO_BUSY_POLL). Of use only with cards whose driver can.
  std::optional<int> busy_poll_us;

  // ArgumentError that names a variable whose value is none of these.
  static absl::StatusOr<SocketOptions> FromEnvironment();

  // What Apply says of a socket that is used for nothing else. Warns where the kernel gives smaller
  // buffers than buffer_bytes.
  absl::Status Try() const;

  // Sets them for a connected socket, and has the kernel send short messages at once. BackendError
  // that names the variable if the kernel refuses.
  absl::Status Apply(int socket) const;
};

}  // namespace syncline::tcp

#endif  // SYNCLINE_BACKENDS_TCP_SOCKET_OPTIONS_H_
