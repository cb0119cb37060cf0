#include "backends/common/tls_join.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/tls/settings.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

// A rank's settings in the PeerTable: the name of its tls::Mode, and this where the backend may
// send in the clear in spite of it.
constexpr absl::string_view kMayBePlain = ", plain";

std::string Serialize(const tls::Settings& settings, absl::string_view backend) {
  const std::vector<std::string>& allowed = settings.plain_backends;
  const bool may_be_plain = settings.mode != tls::Mode::kOff &&
                            std::find(allowed.begin(), allowed.end(), backend) != allowed.end();
  return absl::StrCat(tls::ModeName(settings.mode), may_be_plain ? kMayBePlain : "");
}

bool MayBePlain(const PeerTable& peers, int rank) {
  return absl::EndsWith(peers.settings(rank), kMayBePlain);
}

absl::string_view ModeOf(const PeerTable& peers, int rank) {
  return absl::StripSuffix(peers.settings(rank), kMayBePlain);
}

absl::Status CheckSame(const PeerTable& peers, absl::string_view backend) {
  for (int rank = 1; rank < peers.size(); ++rank) {
    if (peers.settings(rank) == peers.settings(0)) continue;
    std::string text;
    if (ModeOf(peers, rank) != ModeOf(peers, 0)) {
      text = absl::StrCat("SYNCLINE_TLS must be the same on all ranks: it is ", ModeOf(peers, 0),
                          " for ", peers.Describe(0), " and ", ModeOf(peers, rank), " for ",
                          peers.Describe(rank));
    } else {
      const int with = MayBePlain(peers, 0) ? 0 : rank;
      text =
          absl::StrCat("SYNCLINE_TLS_PLAIN must be the same on all ranks: it lists ", backend,
                       " for ", peers.Describe(with), " and not for ", peers.Describe(rank - with));
    }
    return WithRanks(MismatchError(text), {0, rank});
  }
  return absl::OkStatus();
}

absl::Status CheckMayBePlain(const PeerTable& peers, absl::string_view backend) {
  if (ModeOf(peers, 0) == tls::ModeName(tls::Mode::kOff)) return absl::OkStatus();
  if (MayBePlain(peers, 0)) return absl::OkStatus();
  for (int rank = 1; rank < peers.size(); ++rank) {
    if (peers.host_identity(rank) == peers.host_identity(0)) continue;
    return WithRanks(
        UnsupportedError(absl::StrCat(
            "backend ", backend, " does not encrypt what it sends between hosts, SYNCLINE_TLS is ",
            ModeOf(peers, 0), ", and ", peers.Describe(0), " and ", peers.Describe(rank),
            " are on two: backends auto, tcp and gloo encrypt; where the network between hosts is "
            "trusted, SYNCLINE_TLS_PLAIN=",
            backend, " allows it")),
        {0, rank});
  }
  return absl::OkStatus();
}

// Joins with the words that `serialize` makes of this rank's settings. What is wrong with them is
// told to all, so that none waits for this rank.
absl::StatusOr<PeerTable> JoinWith(absl::FunctionRef<std::string(const tls::Settings&)> serialize,
                                   Store& store, int rank, int size,
                                   const absl::StatusOr<std::string>& payload,
                                   const Deadline& deadline, const PeerCheck& check_peers,
                                   const base::EnvironmentLookup& environment) {
  const absl::StatusOr<tls::Settings> settings = tls::SettingsFromEnvironment(environment);
  return settings.ok()
             ? PeerTable::Join(store, rank, size, payload, deadline, check_peers,
                               serialize(*settings))
             : PeerTable::Join(store, rank, size, settings.status(), deadline, check_peers);
}

}  // namespace

absl::StatusOr<PeerTable> JoinPlain(absl::string_view backend, Store& store, int rank, int size,
                                    const absl::StatusOr<std::string>& payload,
                                    const Deadline& deadline, const PeerCheck& check_peers,
                                    const base::EnvironmentLookup& environment) {
  const auto serialize = [&](const tls::Settings& own) { return Serialize(own, backend); };
  SYNCLINE_ASSIGN_OR_RETURN(PeerTable peers, JoinWith(serialize, store, rank, size, payload,
                                                      deadline, check_peers, environment));
  SYNCLINE_RETURN_IF_ERROR(CheckSame(peers, backend));
  SYNCLINE_RETURN_IF_ERROR(CheckMayBePlain(peers, backend));
  return peers;
}

absl::StatusOr<PeerTable> JoinEncrypting(Store& store, int rank, int size,
                                         const absl::StatusOr<std::string>& payload,
                                         const Deadline& deadline, const PeerCheck& check_peers,
                                         const base::EnvironmentLookup& environment) {
  const auto serialize = [](const tls::Settings& own) {
    return std::string(tls::ModeName(own.mode));
  };
  SYNCLINE_ASSIGN_OR_RETURN(PeerTable peers, JoinWith(serialize, store, rank, size, payload,
                                                      deadline, check_peers, environment));
  SYNCLINE_RETURN_IF_ERROR(CheckSame(peers, ""));
  return peers;
}

}  // namespace syncline::backends
