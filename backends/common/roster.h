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
#include "core/deadline.h"
#include "core/host.h"
#include "core/store.h"

namespace syncline {

// What can be told of a process from here.
enum class Liveness { kAlive, kStopped, kDead, kUnknown };  // Stopped: by a signal, such as ^Z.

// Immutable once made; known without the store from then on, so that messages can name a rank
// even if the store is gone.
class Roster {
 public:
  // Publishes this rank, with `payload` for its peers, and waits for all others. A timeout names
  // the ranks that have not come. A rank that could not get what it needs to connect gives that
  // error in place of the payload, and gets it back at once; the others get a BackendError with it.
  // If `known`, a roster of the same ranks, is given, the death of one ends the wait within a
  // second or two, with a NetworkError that names it.
  static absl::StatusOr<Roster> Join(Store& store, int rank, int size,
                                     const absl::StatusOr<std::string>& payload,
                                     const Deadline& deadline, const Roster* known = nullptr);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::string& payload(int rank) const { return members_[rank].payload; }

  int pid(int rank) const { return members_[rank].peer.pid; }

  // Of ThisPeer.
  const std::string& host_identity(int rank) const { return members_[rank].peer.identity; }

  // "rank 3 (host b, pid 81)".
  std::string Describe(int rank) const;

  // Asks the kernel about the process of `rank`; kUnknown if it runs on another host or in
  // another container.
  Liveness Probe(int rank) const;

  // A NetworkError that names the ranks whose processes have ended, if this host's kernel knows
  // any.
  absl::Status CheckAlive() const;

 private:
  struct Member {
    Peer peer;
    std::string pid_namespace;
    int64_t started = 0;  // Kernel ticks since boot: tells a process from a later one of its pid.
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
