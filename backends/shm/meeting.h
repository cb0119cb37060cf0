// How the ranks of a group begin a collective: each shows its call, and sees that all have made
// the same.
#ifndef SYNCLINE_BACKENDS_SHM_MEETING_H_
#define SYNCLINE_BACKENDS_SHM_MEETING_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/common/call.h"
#include "backends/shm/vigil.h"
#include "core/base/deadline.h"

namespace syncline {

// One rank's part in one collective. Not thread-safe.
class Meeting {
 public:
  static constexpr size_t kBesideSplits = Header::kPayload - sizeof(int64_t);

  // The collective with `number` in the group, for which ranks lay `bytes` each, the same number on
  // all. They are laid in the header if they fit, else at `table`. Both are free: all ranks have
  // finished the collective before the last.
  Meeting(Vigil& vigil, const Call& call, uint64_t number, const Deadline& deadline, size_t bytes,
          size_t table)
      : vigil_(vigil),
        board_(vigil.board()),
        waiting_{call, deadline, number},
        is_short_(bytes <= Header::kPayload),
        table_(table) {}

  // Where this rank lays its data before Open, and where those of another lie after it.
  char* Table() { return is_short_ ? own_.payload : board_.table(vigil_.rank(), table_); }
  const char* TableOf(int rank) const {
    return is_short_ ? board_.header(rank, waiting_.number).content.payload
                     : board_.table(rank, table_);
  }

  // Shows the call and what lies on the table, and returns once all ranks have, and have made the
  // same call. A MismatchError that quotes two calls fails the group.
  absl::Status Open();

  // Of all_to_all, before Open: shows how the data are split as well. Returns the most elements
  // that this rank sends any other, or expects; after Open, MostOf tells those of another.
  int64_t LaySplits();
  int64_t MostOf(int rank) const;
  // What they leave of the header: kBesideSplits bytes, where this rank lays, or those of another.
  char* BesideSplits() { return own_.payload + sizeof(int64_t); }
  const char* BesideSplitsOf(int rank) const {
    return board_.header(rank, waiting_.number).content.payload + sizeof(int64_t);
  }
  // After Open: the most elements that any rank sends any other. A MismatchError,
  // which fails the group, if what the ranks send each other is not what they expect.
  absl::StatusOr<int64_t> AgreeOnSplits();

  const Waiting& waiting() const { return waiting_; }

 private:
  // Shows this rank's call in full; whether another rank has; what it was then; whether those of
  // all ranks go together, once all have.
  void Explain();
  bool HasExplained(int rank) const;
  absl::StatusOr<Call> CallOf(int rank) const;
  absl::Status CheckCalls() const;

  // Fails the group, since the header of `rank` shows another call.
  absl::Status ExplainMismatch(int rank);

  Vigil& vigil_;
  const Board& board_;
  const Waiting waiting_;
  const bool is_short_;
  const size_t table_;
  Header::Content own_;  // Goes to the header at once, which others look at all the time.
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_MEETING_H_
