// Detects that the process of a peer has ended.
#ifndef SYNCLINE_BACKENDS_SHM_PEER_WATCHDOG_H_
#define SYNCLINE_BACKENDS_SHM_PEER_WATCHDOG_H_

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "backends/common/peer_table.h"
#include "core/base/unique_fd.h"

namespace syncline {

// Watches the processes of all ranks but this one's through pidfds. All groups of this process
// share one pidfd for each pid that they watch.
//
// The pid of a rank in another pid namespace, such as another container of the same pod, names an
// unrelated process or none here, and is not used. Such a rank is watched if it is at the other end
// of a Unix-domain connection, whose process the kernel knows: rank 0 so watches all others, and
// they watch rank 0. Its other peers learn of its death when rank 0 waits for anything.
//
// Thread-safe once all ranks are watched.
class PeerWatchdog {
 public:
  explicit PeerWatchdog(const PeerTable& roster);

  PeerWatchdog(PeerWatchdog&&) = default;
  PeerWatchdog& operator=(PeerWatchdog&&) = default;

  // Watches `rank`, the peer of `connection`, unless it is watched already or is this process.
  void WatchPeerOf(int connection, int rank);

  // A NetworkError that names the dead among the ranks for which `matters` is true, if any.
  // Does not wait.
  absl::Status Check(absl::FunctionRef<bool(int rank)> matters) const;

 private:
  void Watch(int rank, std::shared_ptr<const UniqueFd> pidfd);

  struct Peer {
    std::string name;  // For messages.
    std::shared_ptr<const UniqueFd> pidfd;
    bool is_self = false;   // Of this process.
    bool was_dead = false;  // Before it could be watched.
  };
  std::vector<Peer> peers_;      // By rank.
  std::vector<pollfd> entries_;  // By rank; the descriptor is -1 for those not watched.
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_PEER_WATCHDOG_H_
