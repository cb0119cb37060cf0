// All sizes and times at which backend tcp changes what it does, except the piece of a scan, which
// is kPieceBytes of backends/common/typed_backend.cc.
//
// How each operation moves its data. Unless MismatchCheck is off, a comparison of the calls goes
// before each but send and recv.
//
//   broadcast, all_reduce, reduce, all_gather, gather, scatter, reduce_scatter, all_to_all
//                  as backends/common/message_collectives.h says, with the two sizes below
//   scan, exscan   all_gather of pieces of 1 MiB, and a reduction: TypedBackend::ReducePrefix
//   barrier        the comparison of the calls, also where MismatchCheck is off
//   send, recv     kEagerBytes without the receiver's consent; of more, up to kMaxFirstBytes
//                  while that is on its way, and the rest after it
#ifndef SYNCLINE_BACKENDS_TCP_THRESHOLDS_H_
#define SYNCLINE_BACKENDS_TCP_THRESHOLDS_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "backends/common/message_collectives.h"

namespace syncline::tcp {

// 64 KiB and 1 MiB.
inline constexpr backends::MessageThresholds kMessageThresholds = {64 << 10, 1 << 20};

// A Send of at most so many bytes needs no consent of the receiver.
inline constexpr size_t kEagerBytes = 64 << 10;

// Nor do the first bytes of a larger one, which is done once it has that consent: it comes while
// they are on their way. The kernel takes longer for the same bytes in several system calls. They
// are at most kEagerBytes where half of the window below is in use, and fewer where the kernel has
// no room for them.
inline constexpr size_t kMaxFirstBytes = 1 << 20;

// A system call that reads a header reads so many bytes beyond it, which are copied where they
// belong then: up to about this size the copy takes less than another system call.
inline constexpr size_t kReadAheadBytes = 4 << 10;

// A peer may have sent so many bytes eagerly that no receive has taken, where a message counts for
// at least 512.
inline constexpr size_t kEagerWindow = 2 << 20;

// A peer may have so many sends that no receive has asked for. Those beyond kEagerWindow, and long
// ones, are threads of the peer that wait in Send, so a peer with more does not follow the
// protocol.
inline constexpr size_t kMaxUnexpected = 8192;

// A rank that leaves waits for its peers' kernels to acknowledge what it has sent. It gives up when
// for so long nothing has been acknowledged.
inline constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);

// A rank whose operation failed waits at most so long for the leave message of peers whose
// connection has ended, or which have died.
inline constexpr absl::Duration kDisconnectGrace = absl::Milliseconds(200);

// A rank that knows how the ranks' calls differ waits at most so long until all others do.
inline constexpr absl::Duration kReadingGrace = absl::Seconds(1);

}  // namespace syncline::tcp

#endif  // SYNCLINE_BACKENDS_TCP_THRESHOLDS_H_
