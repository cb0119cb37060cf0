#include "backends/tcp/socket_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "backends/tcp/silent_hosts.h"
#include "core/base/env.h"
#include "core/base/sockets.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::tcp {
namespace {

constexpr char kBuffer[] = "SYNCLINE_SOCKET_BUFFER";
constexpr char kCongestion[] = "SYNCLINE_TCP_CONGESTION";
constexpr char kDscp[] = "SYNCLINE_SOCKET_DSCP";
constexpr char kBusyPoll[] = "SYNCLINE_SOCKET_BUSY_POLL";

absl::StatusOr<std::optional<int>> Read(const char* variable, int low, int high) {
  const std::optional<std::string> text = base::GetEnv(variable);
  if (!text.has_value()) return std::optional<int>();
  int value = 0;
  if (absl::SimpleAtoi(*text, &value) && value >= low && value <= high) return value;
  return ArgumentError(
      absl::StrCat(variable, " must be a number from ", low, " to ", high, ", not '", *text, "'"));
}

// "; it has reno cubic"; empty where /proc does not say.
std::string KnownCongestionControls() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_congestion_control");
  std::string names;
  std::getline(file, names);
  return names.empty() ? "" : absl::StrCat("; it has ", names);
}

absl::Status Refused(const char* variable, absl::string_view value) {
  const int error = errno;
  std::string hint;
  if (error == EPERM) hint = "; other than its own setting needs CAP_NET_ADMIN";
  if (error == ENOENT) hint = KnownCongestionControls();  // No other option has names.
  return BackendError(
      absl::StrCat("the kernel refuses ", variable, "=", value, ": ", std::strerror(error), hint));
}

absl::Status Set(int socket, int level, int option, int value, const char* variable) {
  if (setsockopt(socket, level, option, &value, sizeof(value)) == 0) return absl::OkStatus();
  return Refused(variable, absl::StrCat(value));
}

// The class of packets over IPv6; over IPv4 too, of a socket that takes both.
absl::Status SetClass(int socket, int dscp) {
  base::SocketAddress own;
  if (getsockname(socket, own.get(), &own.length) != 0) {
    return BackendError(absl::StrCat("cannot tell a socket's address: ", std::strerror(errno)));
  }
  const int traffic_class = dscp << 2;  // The two bits below are those of congestion.
  if (own.family() == AF_INET6) {
    SYNCLINE_RETURN_IF_ERROR(Set(socket, IPPROTO_IPV6, IPV6_TCLASS, traffic_class, kDscp));
  }
  return Set(socket, IPPROTO_IP, IP_TOS, traffic_class, kDscp);
}

// Says so where the kernel gives a buffer fewer bytes than asked for. It counts twice what was set,
// as its own records take room too.
void ReportSmaller(int socket, int option, int asked, absl::string_view limit) {
  int given = 0;
  socklen_t length = sizeof(given);
  if (getsockopt(socket, SOL_SOCKET, option, &given, &length) != 0 || given / 2 >= asked) return;
  Log(LogLevel::kWarning, absl::StrCat(kBuffer, "=", asked, ": the kernel gives ", given / 2,
                                       " bytes, the limit of ", limit));
}

}  // namespace

absl::StatusOr<SocketOptions> SocketOptions::FromEnvironment() {
  SocketOptions options;
  SYNCLINE_ASSIGN_OR_RETURN(options.silence_limit, SilenceLimit());
  SYNCLINE_ASSIGN_OR_RETURN(options.buffer_bytes, Read(kBuffer, 4096, 1 << 30));
  options.congestion = base::GetEnv(kCongestion);
  if (options.congestion.has_value() && options.congestion->empty()) {
    return ArgumentError(absl::StrCat(kCongestion, " must name a congestion control, such as ",
                                      "cubic; it is empty"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(options.dscp, Read(kDscp, 0, 63));
  SYNCLINE_ASSIGN_OR_RETURN(options.busy_poll_us, Read(kBusyPoll, 0, 1'000'000));
  return options;
}

absl::Status SocketOptions::Try() const {
  SYNCLINE_ASSIGN_OR_RETURN(const base::UniqueFd socket, base::OpenSocket(AF_INET, SOCK_STREAM));
  SYNCLINE_RETURN_IF_ERROR(Apply(socket.get()));
  if (buffer_bytes.has_value()) {
    ReportSmaller(socket.get(), SO_RCVBUF, *buffer_bytes, "net.core.rmem_max");
    ReportSmaller(socket.get(), SO_SNDBUF, *buffer_bytes, "net.core.wmem_max");
  }
  return absl::OkStatus();
}

absl::Status SocketOptions::Apply(int socket) const {
  base::SetNoDelay(socket);
  KeepAlive(socket, silence_limit);
  if (buffer_bytes.has_value()) {
    // The kernel takes what its limits (rmem_max, wmem_max) leave of it.
    SYNCLINE_RETURN_IF_ERROR(Set(socket, SOL_SOCKET, SO_RCVBUF, *buffer_bytes, kBuffer));
    SYNCLINE_RETURN_IF_ERROR(Set(socket, SOL_SOCKET, SO_SNDBUF, *buffer_bytes, kBuffer));
  }
  if (congestion.has_value() && setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, congestion->data(),
                                           congestion->size()) != 0) {
    return Refused(kCongestion, *congestion);
  }
  if (dscp.has_value()) SYNCLINE_RETURN_IF_ERROR(SetClass(socket, *dscp));
  if (busy_poll_us.has_value()) {
    SYNCLINE_RETURN_IF_ERROR(Set(socket, SOL_SOCKET, SO_BUSY_POLL, *busy_poll_us, kBusyPoll));
  }
  return absl::OkStatus();
}

}  // namespace syncline::tcp
