// All sizes and times at which backend gloo changes what it does, except the piece of a scan, which
// is kPieceBytes of backends/common/typed_backend.cc.
//
// How each operation moves its data, by N, the bytes of the tensor. Unless MismatchCheck is off, a
// comparison of the calls goes before each but send and recv (call_check.h). The functions are
// those of MessageCollectives, over Gloo's unbound buffers (transfers.h).
//
//   broadcast, all_reduce, reduce, all_gather, gather, scatter, reduce_scatter, all_to_all
//                  as backends/common/message_collectives.h says, with the two sizes below
//   scan, exscan   all_gather of pieces of 1 MiB, and a reduction: TypedBackend::ReducePrefix
//   barrier        the comparison of the calls, also where MismatchCheck is off
//   send, recv     a header, and the elements once the receiver has checked it: p2p.h
#ifndef SYNCLINE_BACKENDS_GLOO_THRESHOLDS_H_
#define SYNCLINE_BACKENDS_GLOO_THRESHOLDS_H_

#include <chrono>

#include "absl/time/time.h"
#include "backends/common/message_collectives.h"

namespace syncline::gloo_backend {

// 16 KiB and 1 MiB.
inline constexpr backends::MessageThresholds kMessageThresholds = {16 << 10, 1 << 20};

// How long a rank that joins waits for one connection before it looks at the others again.
inline constexpr std::chrono::milliseconds kConnectSlice(50), kNoWait(0);

// A rank that leaves waits at most so long for its peers to read what it has sent.
inline constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);

// A rank whose operation failed waits at most so long for the connections of peers that have died
// to end, so that it can tell whether they had left before.
inline constexpr absl::Duration kDisconnectGrace = absl::Milliseconds(200);

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_THRESHOLDS_H_
