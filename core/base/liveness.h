// Tells whether the process of a rank still runs, as far as this host's kernel knows. Joins, gloo's
// reports and monitored barriers decide by it that a rank is dead. Backend shm watches its peers by
// pidfds instead (backends/shm/peer_watchdog.h). All functions are thread-safe.
#ifndef SYNCLINE_CORE_BASE_LIVENESS_H_
#define SYNCLINE_CORE_BASE_LIVENESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "syncline/peer.h"

namespace syncline::base {

enum class Liveness {
  kAlive,
  kStopped,  // By a signal, such as that of ^Z.
  kDead,
  kUnknown,  // It runs on another host, or in another pid namespace, such as a container; or this
             // process lacks a descriptor with which to read /proc.
};

// Asks the kernel about the process `peer`, on behalf of `self`, the calling process. Reads one
// file below /proc; does not wait.
Liveness LivenessOf(const Peer& self, const Peer& peer);

// The error for the dead `ranks`, each named as in "rank 3 (host b, pid 81)"; OK for none.
absl::Status DeadRanksError(std::vector<int> ranks, const std::vector<std::string>& names);

// How often a wait for other ranks calls its PeerCheck.
inline constexpr absl::Duration kLivenessInterval = absl::Seconds(1);

// A check that returns a NetworkError that names those of `ranks` that have died. `peers` are all
// ranks, and `self` is the rank of this process; without peers the check is empty. Ranks with
// kUnknown count as alive.
PeerCheck CheckRanksAlive(std::vector<Peer> peers, int self, std::vector<int> ranks);

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_LIVENESS_H_
