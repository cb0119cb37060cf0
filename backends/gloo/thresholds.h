// All sizes and times at which backend gloo changes what it does, except the piece of a scan, which
// is kPieceBytes of backends/common/typed_backend.cc.
//
// How each operation moves its data, by N, the bytes of the tensor. Unless MismatchCheck is off, a
// comparison of the calls goes before each but send and recv (call_check.h). The functions are
// those of GlooCollectives (gloo_collectives.cc), over Gloo's unbound buffers (transfers.h).
//
//   operation                N <= kDirectReduceMaxBytes    N > kDirectReduceMaxBytes
//   all_reduce               DirectReduce to all ranks     ReduceScatter, then AllGather
//   reduce                   DirectReduce to the root      ReduceScatter, then Gather
//   reduce_scatter           PipelinedReduceScatter, in pieces of kReducePieceBytes, of any size
//   broadcast                gloo::broadcast, a binomial tree
//   all_gather, all_to_all   each rank to each other, all at once
//   gather, scatter          the root with each other rank, all at once
//   scan, exscan             all_gather of pieces of 1 MiB, and a reduction:
//                            TypedBackend::ReducePrefix
//   barrier                  the comparison of the calls, also where MismatchCheck is off
//   send, recv               a header, and the elements once the receiver has checked it: p2p.h
#ifndef SYNCLINE_BACKENDS_GLOO_THRESHOLDS_H_
#define SYNCLINE_BACKENDS_GLOO_THRESHOLDS_H_

#include <cstddef>

#include "absl/time/time.h"

namespace syncline::gloo_backend {

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

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_THRESHOLDS_H_
