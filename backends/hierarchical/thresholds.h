// All sizes and times at which backend hierarchical changes what it does. The sizes were measured
// with //tests/backends:auto_benchmark.
//
// How each operation moves its data, by N. hierarchical_backend.cc chooses; the functions are those
// of latency_algorithms.h and bandwidth_algorithms.h. Within a node they use backend shm, whose own
// ways are in backends/shm/shm_collectives.h; where tcp moves the data, see
// backends/tcp/thresholds.h.
//
// In the latency algorithms of rooted operations whose root is the leader of its node ranks do not
// meet: RailHistory.
//
//   operation        N                 N <= kLatencyMaxBytes   N > kLatencyMaxBytes
//   broadcast        the tensor        LatencyBroadcast        BandwidthBroadcast
//   all_reduce       the tensor        LatencyAllReduce        BandwidthAllReduce
//   reduce           the tensor        LatencyReduce           BandwidthReduce
//   all_gather       all outputs       LatencyAllGather        BandwidthAllGather
//   reduce_scatter   all inputs        LatencyReduceScatter    BandwidthReduceScatter; if the nodes
//                                                              have unequal numbers of ranks, tcp
//   gather, scatter  one part where    LatencyGather, Scatter  BandwidthGather and Scatter where
//                    each node has                             each node has one rank; else
//                    one rank; else                            LatencyAllReduce, to compare the
//                    all parts                                 calls, and PairwiseGather, Scatter
//   all_to_all       all parts         where all parts have one size and each node has one rank,
//                                      LatencyAllToAllAlone up to kAtOnceMaxBytesAlone; elsewhere
//                                      LatencyAllToAll up to kLatencyMaxBytesAlone; else
//                                      PairwiseAllToAll, after a comparison of the sizes by tcp if
//                                      they are not all the same
//   scan, exscan                       all_gather of pieces of 1 MiB, and a reduction:
//                                      TypedBackend::ReducePrefix
//   barrier                            LatencyAllReduce of nothing
//   send, recv                         shm within a node, tcp between nodes
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_THRESHOLDS_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_THRESHOLDS_H_

#include <cstddef>

#include "absl/time/time.h"

namespace syncline::hierarchical {

// Collectives of at most so many bytes use the latency algorithms, larger ones the bandwidth
// algorithms. The bytes are those of the tensor, or where there are parts, of all of them.
inline constexpr size_t kLatencyMaxBytes = 64 << 10;  // 64 KiB.
// The same where each node has one rank: nothing within a node makes a bandwidth algorithm slow to
// begin.
inline constexpr size_t kLatencyMaxBytesAlone = 16 << 10;  // 16 KiB.

// But up to so many nodes operations with a root take kLatencyMaxBytes there too: in a bandwidth
// algorithm ranks meet. It has not been measured with more, where the root would have much to give
// or to take by itself.
inline constexpr int kMaxNodesAtOnce = 8;
// A reduce also if the root takes at most so many bytes of all others together. That is n / 2 times
// as much as in the bandwidth algorithm, which at 1 Gbit/s takes half the time from 24 KiB on.
inline constexpr size_t kReduceMaxBytesOfOthers = 96 << 10;  // 96 KiB.

// From so many nodes on, leaders hear of some others through others in latency algorithms, which is
// fewer packets for each.
inline constexpr int kMinNodesToRelay = 4;

// The same where they give to a root, which takes several packets by one system call. With 4 and 8
// nodes that share two cores a tree takes a tenth longer; with more it has not been measured, but
// what reaches one node at a time is then what bounds all.
inline constexpr int kMinNodesToCollect = 16;

// In rooted operations other than broadcast they do if half of all parts, about what a child of the
// root passes on, has at most so many bytes; else each node gives to the root, or takes from it.
inline constexpr size_t kTreeMaxBytes = 16 << 10;  // 16 KiB.

// Where each node has one rank, the parts of a reduce_scatter that are more bytes together go
// straight to their nodes, also where other operations are relayed: a leader that passes on what
// others have sends as many times as much as there are nodes.
inline constexpr size_t kRelayedReduceScatterMaxBytesAlone = 2 << 10;  // 2 KiB.

// Where each node has one rank, the parts of an all_to_all go behind the record of the call if all
// of them have one size, and together at most so many bytes. If those of another rank have not,
// they are received to be thrown away.
inline constexpr size_t kAtOnceMaxBytesAlone = 4 << 20;  // 4 MiB.

// A bandwidth algorithm works on chunks of so many bytes, for all rails together. What one rail has
// of a chunk, once from each node, fits a core's cache.
inline constexpr size_t kChunkBytes = 1 << 20;  // 1 MiB.

// A broadcast over more than two nodes takes smaller ones, of at least so many bytes.
inline constexpr size_t kMinBroadcastChunkBytes = 256 << 10;  // 256 KiB.

// Two nodes reduce tensors of at most so many bytes in one exchange, in which each sends all it
// has, and larger ones in two, where each combines half.
inline constexpr size_t kPairMaxBytes = 4 << 20;  // 4 MiB.

// A chunk is not split over more rails than leave each at least so many bytes.
inline constexpr size_t kMinRailPartBytes = 16 << 10;  // 16 KiB.

// When a step fails because a peer has gone, its connection of backend tcp ends a moment later. A
// failed step waits so long for that, so that backend tcp can say which peer it was.
inline constexpr absl::Duration kPeerGoneGrace = absl::Milliseconds(100);

// Where ranks do not meet, so many bytes may go to a rank that has not taken them: two calls of
// kLatencyMaxBytes, or 128 of 1 KiB. What is longer waits for its receiver.
// RailSockets has the kernel of a receiver make room for so many, so that no data is left to send
// once this rank has returned.
inline constexpr size_t kMaxBytesAhead = 160 << 10;  // 160 KiB.
// Room for the records of RailHistory::kCalls beside them, encrypted or not.
inline constexpr size_t kRecordBytesAhead = 10 << 10;  // 10 KiB.

// A rank that has found a mismatch takes at most so long to tell the other nodes.
inline constexpr absl::Duration kAbortPeersTimeout = absl::Seconds(1);

// It waits so long for the other nodes, to exchange the calls in full. Without that it quotes what
// its node has shown.
inline constexpr absl::Duration kMeetingTimeout = absl::Seconds(5);

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_THRESHOLDS_H_
