// The generations of a world: the attempts of one size to join through one store, one after
// another. docs/internals/join_keys.md has the keys.
#ifndef SYNCLINE_CORE_JOIN_JOIN_GENERATIONS_H_
#define SYNCLINE_CORE_JOIN_JOIN_GENERATIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/join/join_record.h"
#include "syncline/store.h"

namespace syncline::join {

// Keys in the store of one generation. A slot's key holds the JoinRecord of the process that took
// the slot. The outcome is decided once for all: kComplete, or why the generation has failed, as
// store::SerializeError writes it.
std::string SlotKey(int slot);
std::string LeftKey(int slot);  // Set once the process in this slot has left the world.
inline constexpr absl::string_view kSlotPrefix = "slot/";
inline constexpr absl::string_view kOutcome = "outcome";
inline constexpr absl::string_view kComplete = "complete";

// The status that an outcome means for every process of a generation of `size` ranks. StoreError if
// no process of this version has written it.
absl::Status ParseOutcome(absl::string_view outcome, int size);

// The records in `generation` now, by rank.
absl::StatusOr<std::vector<JoinRecord>> RecordsSoFar(Store& generation);

// Hands out the slots of each generation. A generation has slots 1 to `size`, each a key that one
// process sets. A slot can be taken again in the next generation once the process in it has left,
// or once its generation has failed. Nothing is counted, so a process that dies or gives up at any
// point leaves no count wrong.
//
// All state is in the store. The class is thread-safe, as the store is. Errors of the store are
// returned as they are.
class JoinGenerations {
 public:
  struct Slot {
    std::shared_ptr<Store> generation;  // The part of the store that belongs to one generation.
    int number = 0;                     // From 1.
    absl::Status previous_failure;      // Why the generation before has failed; OK if it has not.
  };

  // `store` is the part for worlds of `size`.
  JoinGenerations(std::shared_ptr<Store> store, int size) : store_(std::move(store)), size_(size) {}

  // Takes a free slot in the first generation whose outcome is open. ArgumentError if all its slots
  // are taken.
  absl::StatusOr<Slot> TakeSlot(const JoinRecord& self);

  // Whether there has been a world, all of it has left, and nobody waits for another one.
  absl::StatusOr<bool> AreOver();

 private:
  using Slots = std::set<int>;

  std::shared_ptr<Store> Generation(int64_t number) const;
  // The first generation that still matters.
  absl::StatusOr<int64_t> First();
  // Lets First() begin after generation `number`.
  absl::Status Retire(int64_t number);
  // Takes one of the slots `free`, or of all if it is not given. Returns 0 if none could be taken.
  absl::StatusOr<int> TakeSlotIn(Store& generation, const std::optional<Slots>& free,
                                 const JoinRecord& self);
  absl::Status TooManyProcesses(Store& generation) const;

  const std::shared_ptr<Store> store_;
  const int size_;
};

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_JOIN_GENERATIONS_H_
