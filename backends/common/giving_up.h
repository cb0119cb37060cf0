// How a rank that gives up joining tells the others why.
#ifndef SYNCLINE_BACKENDS_COMMON_GIVING_UP_H_
#define SYNCLINE_BACKENDS_COMMON_GIVING_UP_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "backends/common/peer_table.h"
#include "syncline/store.h"

namespace syncline::backends {

// For a rank that has failed to connect to those of `peers`, with `failure`: publishes that in
// `store`, in which they have met, and returns the error for the user. That is `failure`, unless
// the ranks that it blames have given up before: then it quotes one of them, and names the ranks
// that that one blames. Call it before this rank ends its connections, by which others notice.
// Takes no longer than kGivingUpBound, whatever the store does.
absl::Status GiveUpJoining(std::shared_ptr<Store> store, const PeerTable& peers,
                           const absl::Status& failure);

inline constexpr absl::Duration kGivingUpBound = absl::Seconds(1);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_GIVING_UP_H_
