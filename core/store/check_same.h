// Checks that several ranks make a call with the same arguments, before any of them goes on.
#ifndef SYNCLINE_CORE_STORE_CHECK_SAME_H_
#define SYNCLINE_CORE_STORE_CHECK_SAME_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/liveness.h"
#include "syncline/deadline.h"
#include "syncline/store.h"

namespace syncline::store {

struct CheckSameOptions {
  std::string call;        // For messages: the call that the ranks make, "split".
  std::string value;       // Its arguments on this rank.
  int rank = 0;            // This rank.
  std::vector<int> ranks;  // All ranks that must come, this one included.
  PeerCheck check_peers;   // Returns an error once one of them has died; may be empty.
};

// Collective over `options.ranks`: returns OK once all of them have called it with the same value.
// It works through a store, so it needs no group; ddp/options_fingerprint.h has the form that works
// through a group. `store` must be a part that is used for this one check and nothing else.
//
// Errors, the same on all ranks that wait; RanksOf tells those that they name, in the numbers of
// `options.ranks`:
//   MismatchError  two ranks have different values; it names both, and the values
//   TimeoutError   some ranks did not come by the deadline of one that waits; it names them
//   NetworkError   a rank has died, as check_peers says (the kind is NetworkError for any error)
//   BackendError   a rank could not use the store, or was interrupted; it quotes that rank. The
//                  rank itself gets its own error.
absl::Status CheckSameOnAllRanks(Store& store, const CheckSameOptions& options,
                                 const Deadline& deadline);

// Whether the check in `store` has failed by a timeout or a death. A rank that comes late does not
// join such a check; it can start the next one.
absl::StatusOr<bool> HasCheckExpired(Store& store);

}  // namespace syncline::store

#endif  // SYNCLINE_CORE_STORE_CHECK_SAME_H_
