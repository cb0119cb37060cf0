// All sizes at which backend shm changes its algorithm, in one table, and what limits its memory.
//
// Sizes are in bytes. shm_collectives.h says which way each collective takes by its size, and
// point_to_point.h which way a message takes:
//
//   collectives          inline -> small eager -> large eager -> pipeline, or direct access
//   messages             inline -> eager payload -> pipelined rendezvous
//
// "shm_tuning" below stands for `./bazelw run //benchmarks:shm_tuning`, which tries candidates for
// the first three thresholds in groups of 2, 4 and 8 processes, with calls in a row, and prints the
// best by the geometric mean over all collectives of 8 KiB to 8 MiB.
#ifndef SYNCLINE_BACKENDS_SHM_THRESHOLDS_H_
#define SYNCLINE_BACKENDS_SHM_THRESHOLDS_H_

#include <chrono>
#include <cstddef>

#include "absl/time/time.h"
#include "syncline/op_kind.h"

namespace syncline::shm {

// ---- Where the algorithm changes: collectives ----

// Up to here the data of a message travel in its slot: what the other fields leave of a cache line.
inline constexpr size_t kInlineMaxBytes = 24;

// Up to here those of a collective travel in the entry slot, of two lines: up to kInlineMaxBytes in
// the first. Processors fetch the second with it, and no buffer has to be chosen.
inline constexpr size_t kInlineEntryMaxBytes = kInlineMaxBytes + 64;

// Up to here a rank stages its data in one of its two small eager buffers, which stay in the cache
// and are fetched again at the end of the call before. It is a page.
inline constexpr size_t kSmallEagerMaxBytes = 4 << 10;

// Up to here a rank stages all its data before the exchange of a collective, which is then the only
// wait. Above, data move in chunks through a pipeline, or by direct access. From shm_tuning.
inline constexpr size_t kEagerMaxBytes = 64 << 10;

// The same where ranks share cores: to move chunks there, a core has to change from rank to rank
// for each. With 4 ranks on 2 cores the operations of 128 to 512 KiB, all_gather and gather apart,
// take 0.4 to 0.9 of the time so. Not all_reduce, where each rank would reduce all elements: it
// takes less time up to 256 KiB, and more above.
inline constexpr size_t kSharedCoresEagerMaxBytes = 512 << 10;
inline constexpr size_t kSharedCoresEagerAllReduceMaxBytes = 256 << 10;

// From here on tensors in shared memory are read by direct access. To measure it, compare the
// systems syncline-shm and syncline-shm-shared of `./bazelw run //benchmarks:collectives`.
inline constexpr size_t kDirectAccessMinBytes = 64 << 10;

// From here on a collective with a root uses no direct access: there only one rank reads, or only
// one is read, so main memory limits the transfer, and several cores that copy through buffers get
// more of its bandwidth. Measured likewise, with broadcast and gather.
inline constexpr size_t kRootedDirectAccessMaxBytes = 8 << 20;

// From here on a direct all_reduce is tried in every call: tensors of that size do not stay in
// another core's cache. Smaller ones pause for kDirectTrialInterval calls once calls were slow.
inline constexpr size_t kBeyondCachesMinBytes = 16 << 20;
inline constexpr int kDirectTrialInterval = 200;  // Calls.

// Up to so many ranks each reduces all of every chunk. Larger groups reduce-scatter and all-gather
// each chunk (Rabenseifner), so that every element is reduced once.
inline constexpr int kFullReduceMaxRanks = 2;

// From here on data in ordinary memory may be read by CMA (see cross_memory.h). Two copies through
// the rings nearly always take less time than one by the kernel: between two cores that share a
// cache 0.26 to 0.9 of its time, between two that share none, where ranks write past the caches,
// 0.5 to 0.95, whatever the operation and size. To measure it, compare the systems
// syncline-shm-rings and syncline-shm-cma of `./bazelw run //benchmarks/collectives -- --ways
// in-a-row`. It pays where ranks share cores that share no cache, in all_to_all and for messages:
// with 4 ranks on 2 cores it takes 0.7 to 1.0 of the time there.
inline constexpr size_t kCmaMinBytes = 128 << 10;
inline constexpr size_t kCmaMaxMessageBytes = 512 << 10;
inline constexpr int kCmaTrialInterval = 200;  // Calls.

// What a rank reads by CMA at a time where it reduces: of each other rank so much stays in a core's
// cache until it is reduced.
inline constexpr size_t kCmaBlockBytes = 64 << 10;

// ---- Sizes of chunks ----

// The smallest and the largest chunk of a pipeline; powers of two. The largest fits a core's cache.
// From shm_tuning.
inline constexpr size_t kMinChunkBytes = 32 << 10;
inline constexpr size_t kMaxChunkBytes = 512 << 10;

// As kMaxChunkBytes, for all_reduce by direct access. Measured likewise.
inline constexpr size_t kDirectChunkBytes = 512 << 10;

// A tensor is split into at least so many chunks, unless they would be smaller than the smallest:
// fewer would leave ranks idle while the pipeline fills.
inline constexpr size_t kMinChunksPerTensor = 4;

// Chunks that a rank may be ahead of the slowest.
inline constexpr int kPipelineDepth = 4;

// What a direct all_reduce copies at a time where it writes past the caches. Fits the first cache.
inline constexpr size_t kBypassBlockBytes = 8 << 10;

// ---- Where the algorithm changes: messages ----

// Up to here a send copies its data to an eager payload buffer, and returns.
inline constexpr size_t kEagerMessageMaxBytes = 64 << 10;

// An eager message of more than two such pieces is copied piece by piece, and its receiver takes
// them as they come. Between 2 ranks one of 64 KiB takes 0.8 of the time so.
inline constexpr size_t kEagerPieceBytes = 16 << 10;

// After an eager send so much of the next payload buffer is fetched at most, if the message had as
// many bytes.
inline constexpr size_t kPrefetchedPayloadBytes = 1 << 10;

// Eager payload buffers of a rank: messages that it may have sent and nobody received.
inline constexpr int kEagerPayloads = 32;

// Longer messages that a rank may send at a time, each to another rank, and the buffer of each. A
// transfer has at most kRendezvousDepth chunks in its buffer.
inline constexpr int kMaxRendezvousBuffers = 8;
inline constexpr size_t kRendezvousBufferBytes = 1 << 20;
inline constexpr size_t kRendezvousDepth = 4;

// Message slots from one rank to one other: at least, at most, and how many of them are used in
// turn while the receiver keeps up, so that their lines stay in the caches.
inline constexpr size_t kMinMessageSlots = 8;
inline constexpr size_t kMaxMessageSlots = 1024;
inline constexpr size_t kPreferredMessageSlots = 4;

// Messages of one rank that no receive has asked for may keep half of its slots. Further short ones
// are copied to memory of the receiver, so that one for which it waits finds a slot: so many bytes
// of them, from all ranks.
inline constexpr size_t kMaxBufferedBytes = 32 << 20;

// ---- Where the copy changes: see AdaptiveCopier ----

// From here on a copy is timed: to look at the clock twice takes as long as a smaller one.
inline constexpr size_t kTimedCopyMinBytes = 8 << 10;

// Nanoseconds for each cache line from which on a copy counts as slow. Within a cache a line takes
// 2 to 7, with the source in main memory at most 10; to write a line that a core without a common
// cache still holds takes 20 and more.
inline constexpr double kSlowCopyNanosPerLine = 14;
inline constexpr int kCopyTrialInterval = 100;  // Copies past the caches before another trial.
// So many of the last copies through the caches must have been slow. One in a hundred is by chance;
// of a rank whose peers share its cache in part, every third may be.
inline constexpr int kManySlowTrials = 3;
inline constexpr int kRememberedTrials = 8;

// ---- Where the wait changes: see Waiter ----

// A wait spins so many times, some microseconds, where every rank can have a core of its own; then
// yields for so long, which costs less than to sleep and be woken; then sleeps.
inline constexpr int kSpins = 300;
// Of a wait for the entry of a rank where ranks share cores: a third of a microsecond on Zen. A
// rank that runs on another core often enters the next call within that, and this one then goes on
// without giving up its core; one that shares this one's never does. So each rank has a score,
// which a wait that was worth it raises by kSpinGain, up to kMaxSpinScore, and one that was not
// lowers by 1. Below 0 the next kSpinTrialInterval waits for that rank yield at once. With 4 ranks
// on 2 cores small collectives in which all wait for all take 0.8 to 1.0 of the time so, with 3
// ranks 1.0 to 1.05.
inline constexpr int kSharedCoresSpins = 16;
inline constexpr int kSpinGain = 2;
inline constexpr int kMaxSpinScore = 8;
inline constexpr int kSpinTrialInterval = 32;
// Of a wait for a message where ranks share cores: two thirds of a microsecond, within which a rank
// that runs on another core answers. If it did not, it may have no core, so the next waits spin
// less, and leave it theirs, until one of them succeeds or kMessageSpinTrialInterval have failed.
// With 4 ranks on 2 cores a message of up to 64 KiB takes 0.8 of the time so.
inline constexpr int kMessageSpins = 32;
inline constexpr int kFewMessageSpins = 4;
inline constexpr int kMessageSpinTrialInterval = 16;  // Waits.
inline constexpr int kPauseSpins = 32;                // Of Waiter::Pause: a third of a microsecond.

// Of EntryRing::LetGoAhead: pauses, in which a rank that gives small data call after call makes
// three calls or more, also where the cores share no cache; and waits between trials.
inline constexpr int kPausesToLetGoAhead = 2;
inline constexpr int kPauseTrialInterval = 128;
inline constexpr auto kYieldTime = std::chrono::milliseconds(1);

// Where ranks share cores, who yields still has its share of the core. In gather and scatter over
// several nodes, whose root sends or takes all that crosses, a wait that has yielded for kLongWait
// sleeps at once if most of those before it lasted for so long, counted by how many times they did.
// Elsewhere all have work to do, and to sleep and be woken takes longer: all_reduce of 4 MiB on one
// host a tenth, of 64 KiB over two hosts a third.
inline constexpr auto kVeryLongWait = std::chrono::microseconds(100);

// A rank that is far ahead of others on its core sleeps if so many waits in a row have each lasted
// for kLongRest, within which the others take all that it has given if that is little; one wait of
// so many looks whether that is still so. See Waiter::Rest.
inline constexpr auto kLongWait = std::chrono::microseconds(30);
inline constexpr auto kLongRest = std::chrono::microseconds(150);
inline constexpr int kLongWaits = 4;
inline constexpr int kRestTrialInterval = 16;

// Over several nodes a call that crosses takes a packet, so 5 us and more. Where ranks share cores,
// a rank that waits for another of its node, which was kLead collectives ahead after the last wait,
// dozes for so long, and for the 50 us and more by which the kernel is late: see Waiter::Doze. With
// two ranks on each of two nodes a broadcast of 4 B takes 0.6 of the time so, a scatter 0.7. On one
// node, where a short collective takes a tenth of that, it would take three times as long.
inline constexpr uint64_t kLead = 4;
inline constexpr absl::Duration kDoze = absl::Microseconds(50);

// ---- Memory ----

// The most that all ranks of a group together spend on buffers of each kind. Large groups get
// smaller buffers: a group of up to 256 ranks takes less than 90 MiB, one of 1,024 less than 1 GiB.
inline constexpr size_t kLargeEagerRingsBytes = 8 << 20;
inline constexpr size_t kChunkRingsBytes = 16 << 20;
inline constexpr size_t kEagerPayloadsBytes = 8 << 20;
inline constexpr size_t kRendezvousBuffersBytes = 16 << 20;
inline constexpr size_t kMessageSlotsBytes = 4 << 20;

// The most that one rank spends on its ring of large eager buffers, and how many buffers of the
// largest size that has room for.
inline constexpr size_t kMaxLargeEagerRingBytes = 2 << 20;
inline constexpr size_t kLargeEagerBuffers = 4;

// The most that one of the two small eager buffers takes, of all ranks together. Then the small
// eager buffers of the largest size for which the ring of a rank has room that gives data without
// waiting for those that take them; and the most that all ranks together spend on these.
inline constexpr size_t kSmallEagersBytes = 512 << 10;
inline constexpr size_t kSmallEagerRingBuffers = 8;
inline constexpr size_t kSmallEagerRingsBytes = 1 << 20;

// ---- How far ranks run ahead ----

// Entry slots of a rank: the collectives that it may be ahead of a rank that takes its data. The
// contract in include/syncline/backend.h names this number. Where ranks share cores, a core changes
// from one to another each time that one has no slot left: with 4 ranks on 2 cores short rooted
// operations take 0.5 to 0.8 of the time that they take with 32 slots, and no less with 512. Two
// ranks have fewer: what one tells the other of each must fit a word (EntryRing), and where both
// have a core, they take 1.03 to 1.1 of the time with 128.
inline constexpr uint64_t kEntrySlots = 128;
inline constexpr uint64_t kPairEntrySlots = 32;

// A rank compares its calls with those of ranks for which it has not waited after so many: their
// slots come from other cores' caches, which takes less time for several at once. It tells the
// others how far it has come as often, so that they may be as many collectives less ahead of it.
inline constexpr uint64_t kSettleInterval = 8;

// How far ahead a rank fetches the entry slots that it will write, which the others have read: a
// line that comes from a core without a common cache takes as long as several small collectives.
inline constexpr uint64_t kFetchedEntrySlots = 4;

// ---- What shm_tuning varies ----

struct Tuning {
  size_t eager_threshold = kEagerMaxBytes;
  size_t shared_cores_eager_threshold = kSharedCoresEagerMaxBytes;
  size_t min_chunk = kMinChunkBytes;
  size_t max_chunk = kMaxChunkBytes;
  size_t direct_access_threshold = kDirectAccessMinBytes;
  size_t direct_chunk = kDirectChunkBytes;
  size_t cma_threshold = 0;  // From here on always CMA, in all operations; unless it is 0.
};

// The values above, or what the environment variable SYNCLINE_SHM_TUNING says in their place:
// "EAGER,MIN_CHUNK,MAX_CHUNK" (the first for both thresholds) and perhaps
// ",DIRECT_ACCESS,DIRECT_CHUNK,CMA", in bytes. It is for benchmarks and tests, and must be the same
// on all ranks: the layout of the segment depends on it.
Tuning ReadTuning();

// Whether an operation of `bytes`, as in the table of shm_collectives.h, takes less time by CMA
// where copies to the rings are slow.
bool CmaMayPay(OpKind kind, size_t bytes, bool is_oversubscribed);

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_THRESHOLDS_H_
