// How the ranks of a group find out whether they all made the same call.
#ifndef SYNCLINE_BACKENDS_COMMON_CALL_AGREEMENT_H_
#define SYNCLINE_BACKENDS_COMMON_CALL_AGREEMENT_H_

#include <cstdint>

#include "backends/common/call.h"

namespace syncline {

// What a rank tells another in one round. Plain bytes, all of them set.
struct Ballot {
  uint64_t sequence;
  int64_t count;
  uint64_t lists;  // A hash of Call::counts and Call::form.
  int64_t even;  // all_to_all: what goes from and to each rank, if that is always the same; or -1.
  int32_t peer;
  uint8_t kind;
  uint8_t dtype;
  uint8_t op;
  uint8_t found;  // Bits: what the sender has learned.
};
static_assert(sizeof(Ballot) == 40, "has no padding");

// One rank's part. In each round, it sends ballot() to To(round), then merges what it receives from
// From(round). After all rounds every rank has heard, directly or not, of every other; so it is
// also a barrier, and what any two ranks disagree in is known to all.
//
// The rounds are those of the dissemination barrier: D. Hensgen, R. Finkel and U. Manber, "Two
// Algorithms for Barrier Synchronization", Int. J. of Parallel Programming 17 (1988), section 3. To
// see that nobody misses a disagreement, take the hops by which rank r hears of rank s: each hop
// compares two calls, and what it finds goes along with the later hops. If nothing arrives at r,
// all calls on the way were equal, and so were those of r and s.
class CallAgreement {
 public:
  // Does not keep `call`.
  CallAgreement(const Call& call, int rank, int size);

  static int Rounds(int size);  // ceil(log2(size)).
  static int To(int round, int rank, int size);
  static int From(int round, int rank, int size);

  int rounds() const { return Rounds(size_); }
  int to(int round) const { return To(round, rank_, size_); }
  int from(int round) const { return From(round, rank_, size_); }

  const Ballot& ballot() const { return ballot_; }
  void Merge(const Ballot& received);

  // Makes all ranks find that they do not agree. Before the first round.
  void Object();

  // After all rounds, alike on all ranks. Whether their calls go together, as SameCollective does;
  // and for all_to_all, whether every rank sends every other as much, so that all fits.
  bool agreed() const;
  bool all_even() const;

 private:
  int rank_;
  int size_;
  Ballot ballot_ = {};
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_COMMON_CALL_AGREEMENT_H_
