#include "backends/common/peer_processes.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/liveness.h"

#ifndef SO_PEERPIDFD  // Linux 6.5.
#define SO_PEERPIDFD 77
#endif

namespace syncline::backends {
namespace {

bool HasEnded(int pidfd) {
  pollfd entry = {pidfd, POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

// The pidfds that this process has open, by pid. A process takes part in many groups, and would run
// out of descriptors with one for each peer of each.
class PidfdTable {
 public:
  static PidfdTable& Instance() {
    static PidfdTable* const table = new PidfdTable;
    return *table;
  }

  // Null if there is no such process, or no descriptor.
  std::shared_ptr<const base::UniqueFd> Open(int pid) {
    absl::MutexLock lock(&mutex_);
    std::weak_ptr<const base::UniqueFd>& entry = pidfds_[pid];
    std::shared_ptr<const base::UniqueFd> pidfd = entry.lock();
    // A pidfd whose process has ended may be that of an earlier process with the same pid.
    if (pidfd == nullptr || HasEnded(pidfd->get())) {
      pidfd =
          std::make_shared<const base::UniqueFd>(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
      if (!pidfd->valid()) pidfd = nullptr;
      entry = pidfd;
    }
    return pidfd;
  }

 private:
  absl::Mutex mutex_;
  std::map<int, std::weak_ptr<const base::UniqueFd>> pidfds_ ABSL_GUARDED_BY(mutex_);
};

// A pidfd of the process at the other end of `connection`. Null if there is none to be had.
std::shared_ptr<const base::UniqueFd> PidfdOfPeer(int connection) {
  int pidfd = -1;
  socklen_t length = sizeof(pidfd);
  if (getsockopt(connection, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0 && pidfd >= 0) {
    fcntl(pidfd, F_SETFD, FD_CLOEXEC);
    return std::make_shared<const base::UniqueFd>(pidfd);
  }
  ucred peer = {};
  length = sizeof(peer);
  // The kernel translates the pid to this process's namespace; to 0 if it is not visible there.
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.pid <= 0) {
    return nullptr;
  }
  return PidfdTable::Instance().Open(peer.pid);
}

}  // namespace

PeerProcesses::PeerProcesses(const PeerTable& peers) : table_(peers) {
  for (int rank = 0; rank < peers.size(); ++rank) {
    const bool is_known = peers.LivenessOf(rank) != base::Liveness::kUnknown;
    const bool is_self = is_known && peers.pid(rank) == getpid();
    peers_.push_back({peers.NumberOf(rank), peers.Describe(rank), nullptr, is_self});
    entries_.push_back({-1, POLLIN, 0});
    if (is_self || !is_known) continue;
    std::shared_ptr<const base::UniqueFd> pidfd = PidfdTable::Instance().Open(peers.pid(rank));
    // Probed only after the pidfd was opened: were it before, the process might end in between, and
    // the pidfd be that of another process with the same pid. Probe compares start times.
    if (peers.LivenessOf(rank) == base::Liveness::kDead) {
      peers_[rank].was_dead = true;
    } else if (pidfd != nullptr) {
      Watch(rank, std::move(pidfd));
    } else {
      peers_[rank].is_looked_up = true;
    }
  }
}

void PeerProcesses::Watch(int rank, std::shared_ptr<const base::UniqueFd> pidfd) {
  entries_[rank].fd = pidfd->get();
  peers_[rank].pidfd = std::move(pidfd);
  peers_[rank].is_looked_up = false;
}

bool PeerProcesses::IsTimeToLookUp() const {
  using std::chrono::nanoseconds;
  const int64_t now = nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  int64_t at = look_up_at_->load(std::memory_order_relaxed);
  return now >= at && look_up_at_->compare_exchange_strong(at, now + 1'000'000'000);
}

void PeerProcesses::WatchPeerOf(int connection, int rank) {
  const Peer& peer = peers_[rank];
  if (peer.pidfd != nullptr || peer.is_self || peer.was_dead) return;
  std::shared_ptr<const base::UniqueFd> pidfd = PidfdOfPeer(connection);
  if (pidfd != nullptr) Watch(rank, std::move(pidfd));
}

absl::Status PeerProcesses::Check(absl::FunctionRef<bool(int)> matters) const {
  std::vector<pollfd> entries = entries_;
  const int ended = poll(entries.data(), entries.size(), 0);
  // It fails where the limit of descriptors has become lower than the number of ranks.
  const bool any_ended = ended > 0, cannot_poll = ended < 0 && errno != EINTR;
  const auto is_looked_up = [&](const Peer& peer) { return cannot_poll || peer.is_looked_up; };
  const bool looks_up = std::any_of(peers_.begin(), peers_.end(), is_looked_up) && IsTimeToLookUp();
  std::vector<int> dead;
  std::vector<std::string> names;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const bool has_ended = any_ended && (entries[rank].revents & POLLIN) != 0;
    const bool is_found_dead = looks_up && is_looked_up(peers_[rank]) &&
                               table_.LivenessOf(static_cast<int>(rank)) == base::Liveness::kDead;
    if (!has_ended && !peers_[rank].was_dead && !is_found_dead) continue;
    if (!matters(static_cast<int>(rank))) continue;
    dead.push_back(peers_[rank].number);
    names.push_back(peers_[rank].name);
  }
  return base::DeadRanksError(std::move(dead), names);
}

}  // namespace syncline::backends
