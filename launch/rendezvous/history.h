// Which of two histories of a job holds.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_HISTORY_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_HISTORY_H_

#include <string>
#include <tuple>

namespace syncline {

// How far a job has come in one store. It only ever grows there: each round has a higher number
// than the one before.
struct History {
  int round = 0;        // The last round that was announced; 0: none.
  int members = 0;      // The number of nodes in it.
  std::string address;  // Of the store, host:port. No two stores have the same.
};

// Whether the job goes on in the store of `a`, and the nodes of `b` move there. After a cut of the
// network both sides compute this from the same two histories, so exactly one of them moves. The
// later round wins, as numbers of rounds never go back; then the larger round, as fewer nodes have
// to move; then the address, which always differs.
inline bool Outranks(const History& a, const History& b) {
  return std::tie(a.round, a.members, b.address) > std::tie(b.round, b.members, a.address);
}

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_HISTORY_H_
