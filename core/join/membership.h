// A process's place in a world.
#ifndef SYNCLINE_CORE_JOIN_MEMBERSHIP_H_
#define SYNCLINE_CORE_JOIN_MEMBERSHIP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/base/host.h"
#include "core/join/opened_store.h"
#include "core/store/store.h"

namespace syncline {

// What one process tells the others when it comes.
struct Arrival {
  int64_t rank = -1;  // -1: any that is free.
  OpenedStore::Part part = OpenedStore::Part::kGuest;
  Peer peer;

  std::string Serialize() const;
  static absl::StatusOr<Arrival> Parse(absl::string_view text);
};

// The rank of each of `arrivals`, which are in order of arrival and as many as the world has ranks:
// the one that is given or, of those that are free, the lowest for the host of the store and the
// next ones for the others in order. StoreError if one is given twice or out of range, from which
// Membership keeps the store.
absl::StatusOr<std::vector<int64_t>> AssignRanks(const std::vector<Arrival>& arrivals);

// The ranks of a world meet in a store, which may outlive several worlds in a row: a world that all
// have left can be joined again, as can one's own place as soon as one has left it. A world that
// not all have joined in time has failed, and who comes then waits in the next one.
class Membership {
 public:
  struct Request {
    int64_t rank = -1;  // -1: assigned.
    int64_t size = 1;
    OpenedStore::Part part = OpenedStore::Part::kGuest;
  };

  // Returns once all ranks have come. ArgumentError if the rank is taken, the ranks do not agree on
  // the size, or all places are taken; a TimeoutError says who has not come, to all that have.
  // After an error the rank is free again.
  static absl::StatusOr<Membership> Join(const std::shared_ptr<Store>& store,
                                         const Request& request, const Deadline& deadline);

  int64_t rank() const { return rank_; }
  const std::vector<Peer>& peers() const { return peers_; }  // By rank.
  // The part of the store that is this world's alone.
  const std::shared_ptr<Store>& store() const { return round_; }

  // Gives the place back. To be called once. Tries for as long as `deadline` says, at most for some
  // seconds, if the store does not answer.
  absl::Status Leave(const Deadline& deadline);

 private:
  Membership() = default;

  // Who the others are, once all have come.
  absl::Status Learn(int64_t size, const Deadline& deadline);

  int64_t rank_ = 0;
  int64_t place_ = 0;  // In the round.
  std::vector<Peer> peers_;
  std::shared_ptr<Store> places_;  // What worlds of one size in this store have in common.
  std::shared_ptr<Store> round_;
  std::string claim_;  // The key that holds the rank for this process; empty if it was assigned.
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_JOIN_MEMBERSHIP_H_
