// The collectives of ranks that share memory.
#ifndef SYNCLINE_BACKENDS_SHM_COLLECTIVES_H_
#define SYNCLINE_BACKENDS_SHM_COLLECTIVES_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "backends/shm/in_place.h"
#include "backends/shm/meeting.h"
#include "backends/shm/rings.h"
#include "backends/shm/vigil.h"
#include "backends/shm/writer.h"
#include "core/group/backend.h"
#include "core/tensor/reduce_op.h"
#include "core/tensor/tensor.h"

namespace syncline {

// One rank's part in all of them; the functions are those of Backend. Not thread-safe.
//
// Each begins with a Meeting. What is short lies on the table then, and the meeting is all there is
// to wait for. What is longer goes through a ring of buffers in pieces that fit a core's cache: a
// rank fills its buffer, and takes from those of others, so that all cores work all the time and
// main memory sees the user's tensors only. Reductions of more than two ranks combine a part of
// each piece in each rank, and then exchange the results. Where the tensors that other ranks need
// are in shared memory, they are read there instead: see in_place.h.
class HostCollectives {
 public:
  explicit HostCollectives(Vigil& vigil)
      : vigil_(vigil),
        board_(vigil.board()),
        tables_(board_.sizes()),
        ring_(board_.sizes()),
        in_place_(vigil) {}

  absl::Status Broadcast(const Tensor& tensor, int root, const CallContext& context);
  absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context);
  absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root, const CallContext& context);
  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                         const CallContext& context);
  absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                      const CallContext& context);
  absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root,
                       const CallContext& context);
  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op,
                             const CallContext& context);
  absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                        const CallContext& context);
  absl::Status Barrier(const CallContext& context);

 private:
  struct Flow;
  struct Parts;
  using Counter = std::atomic<uint64_t> RankArea::*;

  int rank() const { return vigil_.rank(); }
  int size() const { return board_.size(); }

  // Runs `body` as the next collective, for which every rank lays `bytes`: 0 if these are too many.
  template <typename Body>
  absl::Status Run(const Call& call, const CallContext& context, size_t bytes, const Body& body);
  void PrepareNext(size_t bytes);
  void PrepareNear(size_t bytes);
  size_t Eager(size_t bytes) const { return bytes <= board_.sizes().eager ? bytes : 0; }

  // The two that have a result on `root` or, if that is kEveryRank, on every rank.
  absl::Status ReduceTo(int root, const Tensor& tensor, ReduceOp op, Meeting& meeting);
  absl::Status GatherTo(int root, absl::Span<const Tensor> outputs, const Tensor& input,
                        size_t most, Meeting& meeting);

  // Those in which a rank has a part for each other.
  template <typename Take>
  absl::Status Distribute(const Parts& parts, Meeting& meeting, const Take& take);
  template <typename Take>
  absl::Status DistributePieces(const Parts& parts, const Waiting& waiting, const Take& take);
  void Lay(absl::Span<const Tensor> inputs, size_t room, uint64_t k, char* to);
  // The place of the part for rank `to` among those that rank `from` lays.
  static size_t PlaceOf(int to, int from) { return to < from ? to : to - 1; }
  size_t PieceOf(size_t bytes) const { return board_.sizes().PieceOf(bytes, board_.sizes().piece); }
  size_t others() const { return std::max(size() - 1, 1); }
  // The room for each part in a table of `bytes`.
  size_t RoomIn(size_t bytes) const { return bytes / others() / kCacheLine * kCacheLine; }
  // The room that parts of up to `most` bytes take, and all of them: 0 if these are too many.
  size_t RoomFor(size_t most) const {
    return most * others() <= Header::kPayload ? most
                                               : (most + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  size_t Laid(size_t most) const { return Eager(RoomFor(most) * others()); }

  // How longer ones are done.
  template <typename Fill, typename Take>
  absl::Status Move(const Flow& flow, const Fill& fill, const Take& take);
  absl::Status ReduceInPlace(int root, const Tensor& tensor, ReduceOp op, const Waiting& waiting);
  absl::Status ReduceWhole(int root, const Tensor& tensor, ReduceOp op, const Waiting& waiting);
  absl::Status ReduceInParts(int root, const Tensor& tensor, ReduceOp op, const Waiting& waiting);

  absl::Status Await(int rank, Counter counter, uint64_t value, const Waiting& waiting);
  absl::Status AwaitOthers(Counter counter, uint64_t value, const Waiting& waiting);
  void Advance(Counter counter, uint64_t value);

  Vigil& vigil_;
  const Board& board_;
  uint64_t number_ = 0;  // Of collectives begun.
  uint64_t pieces_ = 0;  // Of the collectives that have finished.
  TableRing tables_;
  PieceRing ring_;
  InPlace in_place_;
  Writer writer_;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_COLLECTIVES_H_
