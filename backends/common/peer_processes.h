// Detects that the process of a peer has ended, through pidfds.
#ifndef SYNCLINE_BACKENDS_COMMON_PEER_PROCESSES_H_
#define SYNCLINE_BACKENDS_COMMON_PEER_PROCESSES_H_

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "backends/common/peer_table.h"
#include "core/base/unique_fd.h"

namespace syncline::backends {

// Watches the processes of all ranks except this one's. The backend decides what their end means
// for a wait. All groups of this process share one pidfd for each pid that they watch.
//
// The pid of a rank in another pid namespace, such as another container of the same pod, names an
// unrelated process or none here, and is not used. Such a rank is watched if it is at the other end
// of a Unix-domain connection, whose process the kernel knows: so rank 0 watches all others, and
// they watch rank 0. Its other peers learn of its death when rank 0 waits for anything.
//
// A rank for whose process no pidfd is to be had, since descriptors have run out or the kernel or a
// sandbox gives none, is looked up in /proc once a second.
//
// Owns its pidfds. Thread-safe once all ranks are watched: WatchPeerOf may not run beside Check.
class PeerProcesses {
 public:
  explicit PeerProcesses(const PeerTable& peers);

  PeerProcesses(PeerProcesses&&) = default;
  PeerProcesses& operator=(PeerProcesses&&) = default;

  // Watches `rank`, the peer of `connection`, unless it is watched already or is this process.
  void WatchPeerOf(int connection, int rank);

  // A NetworkError that names the dead among the ranks for which `matters` is true, if any.
  // Does not wait.
  absl::Status Check(absl::FunctionRef<bool(int rank)> matters) const;

 private:
  // Whether a second has passed since it last returned true.
  bool IsTimeToLookUp() const;
  void Watch(int rank, std::shared_ptr<const base::UniqueFd> pidfd);

  struct Peer {
    int number;        // For errors.
    std::string name;  // For messages.
    std::shared_ptr<const base::UniqueFd> pidfd;
    bool is_self = false;       // Is a thread of this process.
    bool is_looked_up = false;  // Has no pidfd.
    bool was_dead = false;      // Had ended before it could be watched.
  };
  PeerTable table_;
  std::vector<Peer> peers_;      // By rank.
  std::vector<pollfd> entries_;  // By rank; the descriptor is -1 for those not watched.
  // When those without a pidfd are looked up next, in ns of the steady clock.
  std::unique_ptr<std::atomic<int64_t>> look_up_at_ = std::make_unique<std::atomic<int64_t>>(0);
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_PEER_PROCESSES_H_
