// What several ranks must say alike before any of them goes on.
#ifndef SYNCLINE_CORE_STORE_AGREEMENT_H_
#define SYNCLINE_CORE_STORE_AGREEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/deadline.h"
#include "core/base/liveness.h"
#include "core/store/store.h"

namespace syncline {

struct Proposal {
  std::string call;            // What the ranks are doing, for messages: "split".
  std::string text;            // What this rank says.
  int64_t rank = 0;            // This rank.
  std::vector<int64_t> ranks;  // All who must come, this rank included.
  PeerCheck check_peers;       // Whether they live.
};

// Meets the other ranks in `store`, a part that serves for nothing else. OK once all have come and
// have said the same; MismatchError that names two ranks and what they said, on all, if they do
// not; TimeoutError that names the ranks that have not come by this rank's deadline, on all;
// what `check_peers` says, such as a NetworkError that names a rank that has died, on all;
// BackendError, on all, that quotes the rank to which the store was of no use.
absl::Status Agree(Store& store, const Proposal& proposal, const Deadline& deadline);

// Whether those who came to `store` have given up waiting, so that nobody need come any more.
absl::StatusOr<bool> IsGivenUp(Store& store);

}  // namespace syncline

#endif  // SYNCLINE_CORE_STORE_AGREEMENT_H_
