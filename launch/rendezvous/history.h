// Which of two histories of a job goes on after a network partition.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_HISTORY_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_HISTORY_H_

#include <string>
#include <tuple>

namespace syncline::launch {

// How far a job has come in one store, as far as the choice between two stores goes. It only grows:
// each round in a store has a higher number than the one before.
struct History {
  int round = 0;        // The number of the last announced round; 0: none.
  int members = 0;      // The number of nodes in that round.
  std::string address;  // host:port of the store. No two stores of a job have the same.
};

// Whether the job goes on in the store of `a`, and the nodes of `b` move there. A strict total
// order: after a partition both sides compute it from the same two histories, so exactly one of
// them moves. The later round wins, because round numbers never decrease; then the round with more
// members, because fewer nodes have to move; then the lower address, which always differs.
// Thread-safe.
inline bool Outranks(const History& a, const History& b) {
  return std::tie(a.round, a.members, b.address) > std::tie(b.round, b.members, a.address);
}

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_HISTORY_H_
