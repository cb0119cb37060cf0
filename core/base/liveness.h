// Whether the process of a rank still runs, as far as this host's kernel tells.
#ifndef SYNCLINE_CORE_BASE_LIVENESS_H_
#define SYNCLINE_CORE_BASE_LIVENESS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/host.h"

namespace syncline {

enum class Liveness {
  kAlive,
  kStopped,  // By a signal, such as that of ^Z.
  kDead,
  kUnknown,  // It runs on another host, or in another pid namespace, such as a container; or this
             // process lacks a descriptor to ask with.
};

// Asks the kernel about the process `peer`, on behalf of `self`, the calling process. Reads one
// file below /proc; does not wait.
Liveness Probe(const Peer& self, const Peer& peer);

// The error for ranks that have died, each named as in "rank 3 (host b, pid 81)"; OK for none.
absl::Status DeathOf(const std::vector<std::string>& names);

// A wait for other ranks calls it every kLivenessInterval, and ends with what it returns unless
// that is OK. Empty where nothing is known of the other ranks.
using PeerCheck = std::function<absl::Status()>;
inline constexpr absl::Duration kLivenessInterval = absl::Seconds(1);

// A check that returns a NetworkError that names those of `ranks` that have died. `peers` has all
// ranks, that of this process being `self`; if it has none, the check is empty. Ranks of which
// nothing can be told count as alive.
PeerCheck CheckThatRanksLive(std::vector<Peer> peers, int64_t self, std::vector<int64_t> ranks);

}  // namespace syncline

#endif  // SYNCLINE_CORE_BASE_LIVENESS_H_
