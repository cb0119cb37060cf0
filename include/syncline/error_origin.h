// What an error is about, as data beside its message: which operation failed, and at which ranks.
// Pure functions, for any thread.
#ifndef SYNCLINE_ERROR_ORIGIN_H_
#define SYNCLINE_ERROR_ORIGIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace syncline {

// A payload of absl::Status, as the ErrorKind is: Annotate keeps it. Whoever makes an error about
// an operation attaches it; ProcessGroup, and through it the user, reads it instead of the message.
struct ErrorOrigin {
  // One operation of a group.
  struct Operation {
    static constexpr int64_t kNoPeer = -1;
    static constexpr int64_t kNoRank = -1;

    std::string name;        // As messages name it: "all_reduce".
    uint64_t sequence = 0;   // Its number in the group; of send and recv, between the two ranks.
    int64_t peer = kNoPeer;  // The other rank of send and recv, which may be kAnySource.
    // The rank that called a send or recv. All ranks call the other operations.
    int64_t rank = kNoRank;

    bool operator==(const Operation& other) const {
      return name == other.name && sequence == other.sequence && peer == other.peer &&
             rank == other.rank;
    }
  };

  // The operations that failed: one, or of a mismatch those of the ranks that disagree. Empty if
  // the error says no more than which ranks are at fault.
  std::vector<Operation> operations;
  // Whether the message begins with the name and number of the operation, "all_reduce #5", without
  // its arguments. ProcessGroup adds these if the operation is the one that returns the error.
  bool lacks_arguments = false;
  // The ranks at fault, in the group's numbers: the late, the dead, those that have left or that
  // disagree. Ascending; empty if not known.
  std::vector<int> ranks;
};

// Attaches `origin` in place of what `status` has, its ranks sorted and each once. OK stays OK.
absl::Status WithOrigin(absl::Status status, ErrorOrigin origin);

// These change one field and keep the others.
absl::Status WithRanks(absl::Status status, std::vector<int> ranks);
absl::Status WithOperation(absl::Status status, ErrorOrigin::Operation operation);

// The origin of `other`, if it has one, on a status that was made of it.
absl::Status WithOriginOf(absl::Status status, const absl::Status& other);

absl::optional<ErrorOrigin> OriginOf(const absl::Status& status);
// Empty if not known.
std::vector<int> RanksOf(const absl::Status& status);

// The origin of `status` in one line, to pass it to another process; empty if it has none.
std::string SerializeOrigin(const absl::Status& status);
// The inverse, for bytes that another process has written: nothing if they are no origin.
absl::optional<ErrorOrigin> ParseOrigin(absl::string_view line);

}  // namespace syncline

#endif  // SYNCLINE_ERROR_ORIGIN_H_
