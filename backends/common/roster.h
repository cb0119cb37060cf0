// Who is in a group: host, process and connection data of every rank, exchanged once.
#ifndef SYNCLINE_BACKENDS_COMMON_ROSTER_H_
#define SYNCLINE_BACKENDS_COMMON_ROSTER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/deadline.h"
#include "core/base/host.h"
#include "core/base/liveness.h"
#include "core/store/store.h"

namespace syncline {

// Immutable once made; known without the store from then on, so that messages can name a rank
// even if the store is gone.
class Roster {
 public:
  // Publishes this rank, with `payload` for its peers, and waits for all others. A timeout names
  // the ranks that have not come. A rank that could not get what it needs to connect gives that
  // error in place of the payload, and gets it back at once; the others get a BackendError with it.
  // The wait ends within a second or two with what `check_peers` returns, if that is an error: for
  // the death of a rank, a NetworkError that names it.
  static absl::StatusOr<Roster> Join(Store& store, int rank, int size,
                                     const absl::StatusOr<std::string>& payload,
                                     const Deadline& deadline,
                                     const PeerCheck& check_peers = nullptr);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::string& payload(int rank) const { return members_[rank].payload; }

  int pid(int rank) const { return members_[rank].peer.pid; }

  // Of ThisPeer.
  const std::string& host_identity(int rank) const { return members_[rank].peer.identity; }

  // "rank 3 (host b, pid 81)".
  std::string Describe(int rank) const;

  // Asks the kernel about the process of `rank`; see core/base/liveness.h.
  Liveness Probe(int rank) const;

  // A NetworkError that names the ranks whose processes have ended, if this host's kernel knows
  // any.
  absl::Status CheckAlive() const;

 private:
  struct Member {
    Peer peer;
    std::string failure;  // Why it does not come; else empty.
    std::string payload;
  };

  Roster(int rank, std::vector<Member> members) : rank_(rank), members_(std::move(members)) {}

  static Member Self(const absl::StatusOr<std::string>& payload);
  static std::string Serialize(const Member& member);
  static absl::StatusOr<Member> Parse(absl::string_view text);

  int rank_;
  std::vector<Member> members_;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_COMMON_ROSTER_H_
