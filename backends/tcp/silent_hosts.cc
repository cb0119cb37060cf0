#include "backends/tcp/silent_hosts.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "syncline/status.h"

namespace syncline::tcp {
namespace {

constexpr char kVariable[] = "SYNCLINE_TCP_KEEPALIVE";
constexpr absl::Duration kDefault = absl::Seconds(30);

// Probes of an idle connection that may stay without an answer.
constexpr int kProbes = 4;

}  // namespace

absl::StatusOr<absl::Duration> SilenceLimit() {
  const std::optional<std::string> text = base::GetEnv(kVariable);
  if (!text.has_value()) return kDefault;
  int64_t seconds;
  // The kernel asks once a second at most, and the answer takes its time.
  const bool is_number = absl::SimpleAtoi(*text, &seconds);
  if (!is_number || seconds < 0 || seconds == 1 || seconds > 86400) {
    return ArgumentError(absl::StrCat(
        kVariable, " must be a number of seconds from 2 to 86400, or 0 for never, not '", *text,
        "'"));
  }
  return seconds == 0 ? absl::InfiniteDuration() : absl::Seconds(seconds);
}

void KeepAlive(int socket, absl::Duration limit) {
  if (limit == absl::InfiniteDuration()) return;
  const int on = 1, probes = kProbes;
  const int interval = std::max(1, static_cast<int>(absl::ToInt64Seconds(limit)) / (kProbes + 1));
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &interval, sizeof(interval));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

bool IsSilent(int socket, absl::Duration limit) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  if (info.tcpi_unacked == 0 && info.tcpi_probes == 0) return false;
  return absl::Milliseconds(info.tcpi_last_ack_recv) >= limit;
}

}  // namespace syncline::tcp
