// Worlds of one size in one store, one after another.
#ifndef SYNCLINE_CORE_JOIN_MEMBERSHIP_ROUNDS_H_
#define SYNCLINE_CORE_JOIN_MEMBERSHIP_ROUNDS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/join/membership.h"
#include "core/store/store.h"

namespace syncline {

// In the part of the store that is one round's: who took which place, whether all came, decided
// once for all (kComplete, or why not), and which places have been left.
std::string ArrivalKey(int64_t place);
std::string LeftKey(int64_t place);
inline constexpr absl::string_view kOutcome = "outcome";
inline constexpr absl::string_view kComplete = "complete";

// Those whose arrival the store knows now, by rank.
absl::StatusOr<std::vector<Arrival>> ArrivalsSoFar(Store& round);

// "0 (host a, pid 7), 1 (...)"; without a rank "any (host a, pid 7)".
std::string Describe(const std::vector<Arrival>& arrivals);

// A world is a round: it has places 1 to `size`, each a key of the store that one process sets. A
// place can be taken again in the next round once it has been left, or once the round has failed.
// So nothing is counted, and a process that dies or gives up anywhere leaves no count wrong.
class Rounds {
 public:
  struct Place {
    std::shared_ptr<Store> round;  // The part of the store that is this round's alone.
    int64_t number = 0;
    std::string failure_before;  // Why the round before has failed; empty if it has not.
  };

  Rounds(std::shared_ptr<Store> store, int64_t size) : store_(std::move(store)), size_(size) {}

  // Takes a place. ArgumentError if all are taken.
  absl::StatusOr<Place> Take(const Arrival& self);

  // Whether there has been a world, and nobody is in one or waits for one.
  absl::StatusOr<bool> AreOver();

 private:
  using Places = std::set<int64_t>;

  std::shared_ptr<Store> Round(int64_t number) const;
  // No earlier round matters any more.
  absl::StatusOr<int64_t> First();
  absl::Status Skip(int64_t first);
  // Which one of `free` was taken, or of all if it is not given; 0 if none could be.
  absl::StatusOr<int64_t> TakeIn(Store& round, const std::optional<Places>& free,
                                 const Arrival& self);
  absl::Status Refused(Store& round) const;

  const std::shared_ptr<Store> store_;
  const int64_t size_;
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_JOIN_MEMBERSHIP_ROUNDS_H_
