#include "core/base/liveness.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/process_state.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::base {

Liveness LivenessOf(const Peer& self, const Peer& peer) {
  if (peer.identity != self.identity || peer.pid_namespace != self.pid_namespace) {
    return Liveness::kUnknown;
  }
  const absl::StatusOr<ProcessState> process = ReadProcess(peer.pid);
  if (absl::IsNotFound(process.status())) return Liveness::kDead;
  if (!process.ok()) return Liveness::kUnknown;
  if (process->started != peer.started || process->is_ending) return Liveness::kDead;
  return process->is_stopped ? Liveness::kStopped : Liveness::kAlive;
}

absl::Status DeadRanksError(std::vector<int> ranks, const std::vector<std::string>& names) {
  if (names.empty()) return absl::OkStatus();
  return WithRanks(NetworkError(absl::StrCat(absl::StrJoin(names, ", "),
                                             names.size() == 1 ? " has" : " have", " died")),
                   std::move(ranks));
}

PeerCheck CheckRanksAlive(std::vector<Peer> peers, int self, std::vector<int> ranks) {
  if (peers.empty()) return nullptr;
  return [peers = std::move(peers), self, ranks = std::move(ranks)] {
    std::vector<int> dead;
    std::vector<std::string> names;
    for (int rank : ranks) {
      if (LivenessOf(peers[self], peers[rank]) != Liveness::kDead) continue;
      dead.push_back(rank);
      names.push_back(absl::StrCat("rank ", rank, " (", peers[rank].ToString(), ")"));
    }
    return DeadRanksError(std::move(dead), names);
  };
}

}  // namespace syncline::base
