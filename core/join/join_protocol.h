// How the processes of a world agree on its size and get their ranks: the join protocol.
// docs/internals/join_keys.md has the keys that it writes, and what a crash leaves of them.
#ifndef SYNCLINE_CORE_JOIN_JOIN_PROTOCOL_H_
#define SYNCLINE_CORE_JOIN_JOIN_PROTOCOL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/host.h"
#include "syncline/deadline.h"
#include "syncline/store.h"

namespace syncline::join {

// One process's slot in one generation of a world, from Join to Leave.
//
// A store may outlive several worlds in a row. Each attempt of all ranks to join is a generation.
// A world that all ranks have left can be joined again, and so can a single slot once its process
// has left it. A generation that not all ranks have joined in time has failed; a process that comes
// later joins the next one.
//
// Not thread-safe, except for the const methods. It owns no thread and no socket: destroyed without
// Leave, it keeps its slot taken, as a process that has died does.
//
//   SYNCLINE_ASSIGN_OR_RETURN(JoinProtocol joined,
//                             JoinProtocol::Join(store, {/*rank=*/-1, /*size=*/4}, deadline));
//   UseRank(joined.rank(), joined.peers());
//   SYNCLINE_RETURN_IF_ERROR(joined.Leave(Deadline(absl::Seconds(10))));
class JoinProtocol {
 public:
  struct Request {
    int rank = -1;  // -1: the protocol assigns one.
    int size = 1;   // The same on all ranks.
    // kServer: this process hosts the store. It waits a moment before it gives up, so that the
    // others can still read why.
    StoreConfig::Role role = StoreConfig::Role::kClient;
    std::string backend = "-";  // As JoinRecord's; the same on all ranks.
  };

  // Returns once all ranks have come. After an error the rank is free again.
  //   ArgumentError  the rank is taken, the ranks do not agree on the size, or there are more
  //                  processes than slots
  //   TimeoutError   not all came by the deadline of one rank; it says who, on all that have come,
  //                  also as its ErrorOrigin where ranks are given
  //   MismatchError  the ranks do not agree on the backend
  //   BackendError   another process was interrupted while it waited
  //   StoreError, NetworkError  of the store
  static absl::StatusOr<JoinProtocol> Join(const std::shared_ptr<Store>& store,
                                           const Request& request, const Deadline& deadline);

  int rank() const { return rank_; }
  const std::vector<Peer>& peers() const { return peers_; }  // By rank.
  // The part of the store that belongs to this generation alone.
  const std::shared_ptr<Store>& store() const { return generation_; }

  // Gives the slot back, and the rank if it was given. Call it once. If the store does not answer,
  // it fails at `deadline`, or after some seconds if that is earlier.
  absl::Status Leave(const Deadline& deadline);
  // The same after an error that all ranks get, for at most some seconds: the process that hosts
  // the store waits until the others have it.
  void LeaveAfterFailure();

 private:
  JoinProtocol() = default;

  // Reads the records of all slots, once all are taken: sets rank_ and peers_.
  absl::Status ReadRecords(int size, const Deadline& deadline);

  int rank_ = 0;
  int slot_ = 0;  // In the generation.
  StoreConfig::Role role_ = StoreConfig::Role::kClient;
  std::vector<Peer> peers_;
  std::shared_ptr<Store> of_size_;  // What all worlds of one size in this store have in common.
  std::shared_ptr<Store> generation_;
  std::string reservation_;  // The key that reserves a given rank; empty if the rank was assigned.
};

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_JOIN_PROTOCOL_H_
