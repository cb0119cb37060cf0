// All sizes and times at which backend mpi changes what it does, except the piece of a scan, which
// is kPieceBytes of backends/common/typed_backend.cc.
//
//   broadcast, all_reduce, reduce, all_gather, gather, scatter, reduce_scatter, all_to_all
//                  a comparison of the calls, unless MismatchCheck is off, and then as
//                  backends/common/message_collectives.h says, with the two sizes below
//   scan, exscan   all_gather of pieces of 1 MiB, and a reduction: TypedBackend::ReducePrefix
//   barrier        the comparison of the calls, also where MismatchCheck is off
//   send, recv     one message if the tensor is short, else a header and the elements: mpi_p2p.h
#ifndef SYNCLINE_BACKENDS_MPI_THRESHOLDS_H_
#define SYNCLINE_BACKENDS_MPI_THRESHOLDS_H_

#include <cstddef>

#include "absl/time/time.h"
#include "backends/common/message_collectives.h"

namespace syncline::mpi {

// 16 KiB and 1 MiB.
inline constexpr backends::MessageThresholds kMessageThresholds = {16 << 10, 1 << 20};

// A message of at most so many bytes travels with its header. Longer ones follow it once the
// receiver has checked the header, and are not copied.
inline constexpr size_t kEagerMessageMaxBytes = 8 << 10;

// A wait tests its requests so many times before it looks at anything else.
inline constexpr int kTestsBetweenChecks = 64;
// From then on it gives its core to others between tests; and after this time it sleeps between
// them, so long each time: MPI moves nothing while nobody tests.
inline constexpr absl::Duration kYieldTime = absl::Milliseconds(10);
inline constexpr absl::Duration kSleepTime = absl::Microseconds(50);

// How often a wait asks the kernel whether the processes of its peers live.
inline constexpr absl::Duration kPeerCheckInterval = absl::Milliseconds(10);

// A wait of this length asks the store whether the processes of other hosts live.
inline constexpr absl::Duration kOtherHostsCheckAfter = absl::Milliseconds(500);

// How long a wait for a rank that has left goes on: what that rank sent before may come after its
// leave message.
inline constexpr absl::Duration kLeftGrace = absl::Milliseconds(100);

// A failed operation waits at most so long for MPI to let go of the call's memory.
inline constexpr absl::Duration kCancelTimeout = absl::Milliseconds(200);

// MPI_Finalize waits at most so long for the operations of a group that is open.
inline constexpr absl::Duration kEndUseTimeout = absl::Seconds(5);

// A rank that leaves, or whose operation failed, waits at most so long for what it has sent.
inline constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);

}  // namespace syncline::mpi

#endif  // SYNCLINE_BACKENDS_MPI_THRESHOLDS_H_
