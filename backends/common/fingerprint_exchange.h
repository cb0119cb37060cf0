// Decides whether all ranks of a group made the same call, in ceil(log2 n) messages for each rank.
#ifndef SYNCLINE_BACKENDS_COMMON_FINGERPRINT_EXCHANGE_H_
#define SYNCLINE_BACKENDS_COMMON_FINGERPRINT_EXCHANGE_H_

#include <cstdint>

#include "backends/common/call_fingerprint.h"
#include "syncline/backend.h"

namespace syncline::backends {

// What one rank knows in an exchange. Ranks send it as plain bytes, in the byte order of the
// machine; all bytes are set.
struct FingerprintRecord {
  // Of the call of `context`. Requires context.collective.
  static FingerprintRecord Of(const CallContext& context);

  // Says that the sender may not wait for the others in this call, so that it will not come to
  // exchange the calls in full.
  void SetGoesAhead();
  bool goes_ahead() const;
  // Says that the sender waits for the others, but not for what each of them sends itself.
  void SetRelays();
  bool relays() const;
  // Whether the sender has found that calls differ.
  bool is_rejected() const;

  CallFingerprint call;
  // What goes from and to each rank, if that is always the same, in all_gather, reduce_scatter and
  // all_to_all; else -1. 0 for other operations.
  int64_t even;
  uint64_t flags;  // What the sender has learned: bits that only ever become set.
};
static_assert(sizeof(FingerprintRecord) == 48, "has no padding");

// A hash of what the records of two ranks must have in common.
uint64_t HashOf(const FingerprintRecord& record);

// One rank's state in one comparison; it sends nothing itself. In each round the rank sends
// record() to rank to(round), then merges the record that it receives from rank from(round). After
// all rounds every rank has heard, directly or not, of every other rank. So an exchange is also a
// barrier, and all ranks come to the same result.
//
//   FingerprintExchange exchange(FingerprintRecord::Of(context), rank, size);
//   for (int round = 0; round < exchange.rounds(); ++round) {
//     Send(exchange.to(round), exchange.record());
//     exchange.Merge(Receive(exchange.from(round)));
//   }
//   if (!exchange.agreed()) ...
//
// The rounds are those of the dissemination barrier: D. Hensgen, R. Finkel and U. Manber, "Two
// Algorithms for Barrier Synchronization", Int. J. of Parallel Programming 17 (1988), section 3. No
// rank misses a difference: consider the hops by which rank r hears of rank s. Each hop compares
// two calls, and what it finds travels with the later hops. If nothing arrives at r, all calls on
// the way were equal, and so were those of r and s.
//
// Not thread-safe. Copyable.
class FingerprintExchange {
 public:
  FingerprintExchange(const FingerprintRecord& own, int rank, int size)
      : rank_(rank), size_(size), record_(own) {}

  static int Rounds(int size);  // ceil(log2(size)).
  static int To(int round, int rank, int size);
  static int From(int round, int rank, int size);

  int rounds() const { return Rounds(size_); }
  int to(int round) const { return To(round, rank_, size_); }
  int from(int round) const { return From(round, rank_, size_); }

  const FingerprintRecord& record() const { return record_; }
  void Merge(const FingerprintRecord& received);

  // Replaces FingerprintRecord::even, where one rank speaks for several. Requires that no round has
  // begun.
  void SetEvenCount(int64_t count);

  // Makes all ranks find that they do not agree, for a reason that the records do not show.
  // Requires that no round has begun.
  void Reject();

  // Valid after all rounds, and then the same on all ranks. agreed() is whether the calls go
  // together, as SameCollective says; all_even() is whether, in all_to_all, every rank sends every
  // other the same number of elements, so that all sizes fit.
  bool agreed() const;
  bool all_even() const;

 private:
  int rank_;
  int size_;
  FingerprintRecord record_;
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_FINGERPRINT_EXCHANGE_H_
