// All sizes and times at which backend gloo changes what it does.
#ifndef SYNCLINE_BACKENDS_GLOO_THRESHOLDS_H_
#define SYNCLINE_BACKENDS_GLOO_THRESHOLDS_H_

#include <cstddef>

#include "absl/time/time.h"

namespace syncline {
namespace gloo_backend {

// all_reduce and reduce of at most so many bytes are done in one exchange: every rank that needs
// the result receives all elements. Larger ones are shared out among the ranks, in two exchanges.
inline constexpr size_t kDirectReduceMaxBytes = 16 << 10;  // 16 KiB.

// A rank combines its part in pieces of so many bytes, one from each rank: one piece arrives while
// the one before is combined. So two pieces from each rank are in memory at once.
inline constexpr size_t kReducePieceBytes = 1 << 20;  // 1 MiB.

// A rank that leaves waits at most so long for its peers to read what it has sent.
inline constexpr absl::Duration kLeaveTimeout = absl::Milliseconds(500);

// A rank whose operation failed waits at most so long for the connections of peers that have died
// to end, so that it can tell whether they had left before.
inline constexpr absl::Duration kDisconnectGrace = absl::Milliseconds(200);

}  // namespace gloo_backend
}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_GLOO_THRESHOLDS_H_
