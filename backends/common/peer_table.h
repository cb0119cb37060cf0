// The table of the ranks of a group: the process, host and connection data of each, exchanged once
// through the group's store.
#ifndef SYNCLINE_BACKENDS_COMMON_PEER_TABLE_H_
#define SYNCLINE_BACKENDS_COMMON_PEER_TABLE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/host.h"
#include "core/base/liveness.h"
#include "syncline/deadline.h"
#include "syncline/store.h"

namespace syncline::backends {

// One rank's copy of the table. It is immutable after Join, so any thread may read it, and it needs
// no store, so messages can name a rank even when the store is gone. It is a value: each user keeps
// a copy.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const PeerTable peers,
//                             PeerTable::Join(store, rank, size, my_address, deadline));
//   Connect(peers.payload(0));
class PeerTable {
 public:
  // Collective. Publishes this rank's entry with `payload`, its connection data, under the key
  // "member/RANK" of `store`, and waits for the entries of all other ranks. Errors:
  // - TimeoutError: not all ranks came before `deadline`; it names those that did not.
  // - What `check_peers` returns, within a second or two; for a dead rank, a NetworkError.
  // - payload.status() where this rank has no connection data. It publishes that error first, so
  //   the other ranks get a BackendError that quotes it and nobody waits for this rank.
  // - StoreError: the store does not answer, or holds an entry of another job or version.
  // `settings` is one line, which the caller compares.
  static absl::StatusOr<PeerTable> Join(Store& store, int rank, int size,
                                        const absl::StatusOr<std::string>& payload,
                                        const Deadline& deadline,
                                        const PeerCheck& check_peers = nullptr,
                                        absl::string_view settings = "");

  // This process's rank, and the number of ranks.
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }

  // What `rank` passed to Join.
  const std::string& payload(int rank) const { return members_[rank].payload; }
  const std::string& settings(int rank) const { return members_[rank].settings; }

  int pid(int rank) const { return members_[rank].peer.pid; }

  // Equal for ranks of one host; see Peer::identity.
  const std::string& host_identity(int rank) const { return members_[rank].peer.identity; }

  // For ranks that are some of a larger group's: from here on messages and errors give `numbers`,
  // their ranks there, ascending.
  void Renumber(std::vector<int> numbers) { numbers_ = std::move(numbers); }
  // What messages and errors call a rank: itself, unless they are renumbered.
  int NumberOf(int rank) const { return numbers_.empty() ? rank : numbers_[rank]; }
  std::vector<int> NumbersOf(std::vector<int> ranks) const;

  // "rank 3 (host b, pid 81)".
  std::string Describe(int rank) const;

  // Asks the kernel about the process of `rank`; does not wait. See core/base/liveness.h.
  base::Liveness LivenessOf(int rank) const;

  // A NetworkError that names the ranks whose processes have ended, as far as this host's kernel
  // knows; else OK.
  absl::Status CheckAlive() const;

 private:
  struct Member {
    Peer peer;
    std::string failure;  // Why this rank cannot join; else empty.
    std::string settings;
    std::string payload;
  };

  PeerTable(int rank, std::vector<Member> members) : rank_(rank), members_(std::move(members)) {}

  static Member Self(const absl::StatusOr<std::string>& payload, absl::string_view settings);
  static std::string Serialize(const Member& member);
  static absl::StatusOr<Member> Parse(absl::string_view text);

  int rank_;
  std::vector<Member> members_;
  std::vector<int> numbers_;  // By rank; empty unless they are renumbered.
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_PEER_TABLE_H_
