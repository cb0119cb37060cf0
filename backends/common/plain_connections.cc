#include "backends/common/plain_connections.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/tls/settings.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::backends {

absl::Status CheckMayBePlain(const PeerTable& peers, absl::string_view backend) {
  SYNCLINE_ASSIGN_OR_RETURN(const tls::Settings settings, tls::SettingsFromEnvironment());
  if (settings.mode == tls::Mode::kOff) return absl::OkStatus();
  const std::vector<std::string>& allowed = settings.plain_backends;
  if (std::find(allowed.begin(), allowed.end(), backend) != allowed.end()) return absl::OkStatus();
  for (int rank = 1; rank < peers.size(); ++rank) {
    if (peers.host_identity(rank) == peers.host_identity(0)) continue;
    return WithRanks(
        UnsupportedError(absl::StrCat(
            "backend ", backend, " does not encrypt what it sends between hosts, SYNCLINE_TLS is ",
            tls::ModeName(settings.mode), ", and ", peers.Describe(0), " and ",
            peers.Describe(rank),
            " are on two: backends auto and tcp encrypt; where the network between hosts is "
            "trusted, "
            "SYNCLINE_TLS_PLAIN=",
            backend, " allows it")),
        {0, rank});
  }
  return absl::OkStatus();
}

}  // namespace syncline::backends
