// Collectives on tensors that ranks read where they are. No copy goes through the buffers of the
// group.
#ifndef SYNCLINE_BACKENDS_SHM_IN_PLACE_H_
#define SYNCLINE_BACKENDS_SHM_IN_PLACE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "backends/shm/board.h"
#include "backends/shm/meeting.h"
#include "backends/shm/shared_tensors.h"
#include "backends/shm/vigil.h"
#include "backends/shm/writer.h"
#include "core/tensor/reduce_op.h"
#include "core/tensor/tensor.h"

namespace syncline {

// One rank's part. Ranks only ever read what is another's: one that was stopped, and goes on after
// the others have given up, must not write to memory that is in use for something else; and Finish
// does not let it take what it has read there for a result.
// Not thread-safe.
class InPlace {
 public:
  explicit InPlace(Vigil& vigil)
      : vigil_(vigil), board_(vigil.board()), tensors_(vigil), least_(board_.sizes().in_place) {}

  // Opens the meeting of a collective in which ranks lay nothing, and up to `bytes` of each source
  // are read by others: all that is in `own`, if this rank is one. Whether all of that can be read
  // in place, and is large enough for it to pay. The same on all ranks; if so, all call Finish
  // after they have read what they need.
  absl::StatusOr<bool> Open(Meeting& meeting, size_t bytes, const Sources& sources,
                            absl::Span<const Tensor> own);

  // The same of tensors that AllReduce is then to be called for, if all ranks think that it pays.
  absl::StatusOr<bool> OpenAllReduce(Meeting& meeting, const Tensor& tensor);

  // What `own` was on a source.
  const char* DataOf(int rank) const { return tensors_.DataOf(rank); }

  // Call it after this rank's last read. Fails if what it has read may not have been what the
  // sources offered, since one of them has given up; returns once no rank reads what is of this
  // one.
  absl::Status Finish(const Sources& sources, const Waiting& waiting);

  absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const Waiting& waiting);

 private:
  int rank() const { return vigil_.rank(); }
  int size() const { return board_.size(); }

  absl::StatusOr<bool> OpenWith(const void* data, size_t bytes, const Sources& sources,
                                Meeting& meeting);
  void Reduce(const Tensor& tensor, ReduceOp op, size_t begin, size_t bytes);
  void Advance(uint64_t steps);
  absl::Status Await(int rank, uint64_t steps, const Waiting& waiting);

  Vigil& vigil_;
  const Board& board_;
  SharedTensors tensors_;
  const size_t least_;
  uint64_t steps_ = 0;  // Of the collectives that have finished.

  Writer reduced_, gathered_;  // What ranks write to tensors that others read.
  int until_trial_ = 0;        // Calls of AllReduce.
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_IN_PLACE_H_
