// How the ranks of a group begin a collective: each shows its call, and sees that all have made
// the same.
#ifndef SYNCLINE_BACKENDS_SHM_MEETING_H_
#define SYNCLINE_BACKENDS_SHM_MEETING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/common/call.h"
#include "backends/shm/vigil.h"
#include "core/deadline.h"

namespace syncline {

// One rank's part in one collective. Not thread-safe.
class Meeting {
 public:
  // The collective with `number` in the group.
  Meeting(Vigil& vigil, const Call& call, uint64_t number, const Deadline& deadline)
      : vigil_(vigil), board_(vigil.board()), waiting_{call, deadline, number} {}

  // Where this rank lays data for others before Open: in its header, if they fit, else in its eager
  // buffer. Both are free: all ranks have finished the collective before the last.
  char* Table(size_t bytes) const { return Place(vigil_.rank(), bytes); }
  const char* TableOf(int rank, size_t bytes) const { return Place(rank, bytes); }

  // Shows the call and what lies on the table, and returns once all ranks have, and have made the
  // same call. A MismatchError that quotes two calls fails the group.
  absl::Status Open();

  // Of all_to_all, after Open: the most elements that any rank sends any other. A MismatchError,
  // which fails the group, if what the ranks send each other is not what they expect.
  absl::StatusOr<int64_t> AgreeOnSplits();

  const Waiting& waiting() const { return waiting_; }

 private:
  char* Place(int rank, size_t bytes) const {
    return bytes <= Header::kPayload ? board_.header(rank, waiting_.number).payload
                                     : board_.eager(rank, waiting_.number);
  }
  absl::StatusOr<std::vector<Call>> ExchangeCalls(const Deadline& deadline);
  absl::Status ExplainMismatch(int rank);

  Vigil& vigil_;
  const Board& board_;
  const Waiting waiting_;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_MEETING_H_
