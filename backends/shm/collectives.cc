#include "backends/shm/collectives.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "backends/common/call.h"
#include "backends/shm/call_notes.h"
#include "backends/shm/ranges.h"
#include "core/base/status.h"
#include "core/tensor/reduce_kernels.h"

namespace syncline {
namespace {

using Inputs = absl::InlinedVector<const void*, 8>;

absl::Span<const Tensor> Only(const Tensor& tensor) { return absl::MakeConstSpan(&tensor, 1); }

}  // namespace

// A movement of pieces.
struct HostCollectives::Flow {
  const Waiting& waiting;
  size_t piece;  // Bytes of each but the last, at most.
  uint64_t pieces;
  int from;  // Who fills: one rank, or kEveryRank.
  bool takes;
};

// What ranks lay for each other.
struct HostCollectives::Parts {
  int from;                         // Who lays: one rank, or kEveryRank.
  absl::Span<const Tensor> inputs;  // For each rank, where this rank lays.
  size_t most;                      // Bytes of the largest part of all.
  size_t begin;                     // Bytes, of what each rank has, before this rank's part.
};

absl::Status HostCollectives::Await(int rank, Counter counter, uint64_t value,
                                    const Waiting& waiting) {
  RankArea& area = board_.area(rank);
  return vigil_.Await(area.done, rank, waiting,
                      [&] { return (area.*counter).load(std::memory_order_acquire) >= value; });
}

absl::Status HostCollectives::AwaitOthers(Counter counter, uint64_t value, const Waiting& waiting) {
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) SYNCLINE_RETURN_IF_ERROR(Await(r, counter, value, waiting));
  }
  return absl::OkStatus();
}

void HostCollectives::Advance(Counter counter, uint64_t value) {
  RankArea& own = board_.area(rank());
  (own.*counter).store(value, std::memory_order_release);
  vigil_.Ring(own.done);
}

template <typename Body>
absl::Status HostCollectives::Run(const Call& call, const CallContext& context, size_t bytes,
                                  const Body& body) {
  const size_t table = bytes <= Header::kPayload ? 0 : tables_.Take(bytes);
  Meeting meeting(vigil_, call, ++number_, context.deadline, bytes, table);
  const absl::Status status = body(meeting);
  RankArea& own = board_.area(rank());
  SetNote(call, own.last);
  own.finished.store(number_, std::memory_order_release);
  PrepareNext(bytes);
  return status;
}

// The next collective is likely to be as short. Nobody needs any more what it will overwrite.
void HostCollectives::PrepareNext(size_t bytes) {
  PrefetchToWrite(&board_.header(rank(), number_ + 1));
  if (bytes > Header::kPayload && tables_.IsNear(bytes)) PrepareNear(bytes);
}

void HostCollectives::PrepareNear(size_t bytes) {
  const char* const table = board_.table(rank(), tables_.next_near());
  for (size_t at = 0; at < bytes; at += kCacheLine) PrefetchToWrite(table + at);
}

// fill(k, to) lays the k-th piece; take(k, offset) takes it from board_.piece(rank, offset).
template <typename Fill, typename Take>
absl::Status HostCollectives::Move(const Flow& flow, const Fill& fill, const Take& take) {
  const uint64_t first = pieces_;
  const PieceRing::Slots slots = ring_.Take(flow.piece, flow.pieces);
  const bool fills = flow.from == kEveryRank || flow.from == rank();
  if (!flow.takes) Advance(&RankArea::read, first + flow.pieces);
  // Lays one piece ahead of those that it takes.
  const uint64_t lead = fills && flow.takes ? 1 : 0;
  for (uint64_t k = 0; k < flow.pieces + lead; ++k) {
    if (fills && k < flow.pieces) {
      if (k >= kDepth) {
        SYNCLINE_RETURN_IF_ERROR(
            AwaitOthers(&RankArea::read, first + k - kDepth + 1, flow.waiting));
      }
      fill(k, board_.piece(rank(), slots.offset(k)));
      Advance(&RankArea::written, first + k + 1);
    }
    if (!flow.takes || k < lead) continue;
    const uint64_t taken = k - lead;
    SYNCLINE_RETURN_IF_ERROR(
        flow.from == kEveryRank
            ? AwaitOthers(&RankArea::written, first + taken + 1, flow.waiting)
            : Await(flow.from, &RankArea::written, first + taken + 1, flow.waiting));
    take(taken, slots.offset(taken));
    Advance(&RankArea::read, first + taken + 1);
  }
  pieces_ += flow.pieces;
  return absl::OkStatus();
}

absl::Status HostCollectives::Barrier(const CallContext& context) {
  return Run(Call::Barrier(context), context, 0, [](Meeting& meeting) { return meeting.Open(); });
}

absl::Status HostCollectives::Broadcast(const Tensor& tensor, int root,
                                        const CallContext& context) {
  const size_t bytes = tensor.nbytes();
  char* const data = Bytes(tensor);
  const bool is_short = bytes <= board_.sizes().eager;
  return Run(Call::Broadcast(tensor, root, context), context, Eager(bytes), [&](Meeting& meeting) {
    if (is_short) {
      if (rank() == root) writer_.Write(meeting.Table(), data, bytes);
      SYNCLINE_RETURN_IF_ERROR(meeting.Open());
      if (rank() != root) Copy(data, meeting.TableOf(root), bytes);
      return absl::OkStatus();
    }
    const Sources sources = {root};
    SYNCLINE_ASSIGN_OR_RETURN(const bool in_place,
                              in_place_.Open(meeting, bytes, sources, Only(tensor)));
    if (in_place) {
      if (rank() != root) Copy(data, in_place_.DataOf(root), bytes);
      return in_place_.Finish(sources, meeting.waiting());
    }
    const size_t piece = PieceOf(bytes);
    return Move(
        {meeting.waiting(), piece, Ceil(bytes, piece), root, rank() != root},
        [&](uint64_t k, char* to) {
          const Range range(bytes, piece, k);
          writer_.Write(to, data + range.begin, range.size);
        },
        [&](uint64_t k, size_t offset) {
          const Range range(bytes, piece, k);
          Copy(data + range.begin, board_.piece(root, offset), range.size);
        });
  });
}

absl::Status HostCollectives::AllReduce(const Tensor& tensor, ReduceOp op,
                                        const CallContext& context) {
  return Run(Call::AllReduce(tensor, op, context), context, Eager(tensor.nbytes()),
             [&](Meeting& meeting) { return ReduceTo(kEveryRank, tensor, op, meeting); });
}

absl::Status HostCollectives::Reduce(const Tensor& tensor, ReduceOp op, int root,
                                     const CallContext& context) {
  return Run(Call::Reduce(tensor, op, root, context), context, Eager(tensor.nbytes()),
             [&](Meeting& meeting) { return ReduceTo(root, tensor, op, meeting); });
}

absl::Status HostCollectives::ReduceTo(int root, const Tensor& tensor, ReduceOp op,
                                       Meeting& meeting) {
  const size_t bytes = tensor.nbytes();
  const bool has_result = root == kEveryRank || root == rank();
  if (bytes > board_.sizes().eager) {
    SYNCLINE_ASSIGN_OR_RETURN(
        const bool in_place,
        root == kEveryRank ? in_place_.OpenAllReduce(meeting, tensor)
                           : in_place_.Open(meeting, bytes, {kEveryRank, root}, Only(tensor)));
    if (in_place) return ReduceInPlace(root, tensor, op, meeting.waiting());
    return size() <= 2 ? ReduceWhole(root, tensor, op, meeting.waiting())
                       : ReduceInParts(root, tensor, op, meeting.waiting());
  }
  if (root != rank()) writer_.Write(meeting.Table(), tensor.data(), bytes);
  SYNCLINE_RETURN_IF_ERROR(meeting.Open());
  if (!has_result || bytes == 0) return absl::OkStatus();
  Inputs inputs;
  for (int r = 0; r < size(); ++r) {
    inputs.push_back(r == rank() ? tensor.data() : meeting.TableOf(r));
  }
  syncline::Reduce(tensor.dtype(), op, tensor.data(), inputs, tensor.numel());
  return absl::OkStatus();
}

absl::Status HostCollectives::ReduceInPlace(int root, const Tensor& tensor, ReduceOp op,
                                            const Waiting& waiting) {
  if (root == kEveryRank) return in_place_.AllReduce(tensor, op, waiting);
  if (root == rank()) {
    Inputs inputs;
    for (int r = 0; r < size(); ++r) {
      inputs.push_back(r == rank() ? tensor.data() : in_place_.DataOf(r));
    }
    syncline::Reduce(tensor.dtype(), op, tensor.data(), inputs, tensor.numel());
  }
  return in_place_.Finish({kEveryRank, root}, waiting);
}

absl::Status HostCollectives::ReduceWhole(int root, const Tensor& tensor, ReduceOp op,
                                          const Waiting& waiting) {
  if (size() == 1) return absl::OkStatus();
  const size_t bytes = tensor.nbytes();
  const size_t piece = PieceOf(bytes);
  const int other = 1 - rank();
  const int from = root == kEveryRank ? kEveryRank : 1 - root;
  return Move(
      {waiting, piece, Ceil(bytes, piece), from, root == kEveryRank || root == rank()},
      [&](uint64_t k, char* to) {
        const Range range(bytes, piece, k);
        writer_.Write(to, Bytes(tensor) + range.begin, range.size);
      },
      [&](uint64_t k, size_t offset) {
        const Range range(bytes, piece, k);
        char* const own = Bytes(tensor) + range.begin;
        const void* inputs[2];
        inputs[rank()] = own;
        inputs[other] = board_.piece(other, offset);
        syncline::Reduce(tensor.dtype(), op, own, inputs, range.size / SizeOf(tensor.dtype()));
      });
}

// Rabenseifner's scheme, a reduce-scatter and then an all-gather, on each piece: R. Rabenseifner,
// "Optimization of Collective Reduction Operations", ICCS 2004, section 2.
absl::Status HostCollectives::ReduceInParts(int root, const Tensor& tensor, ReduceOp op,
                                            const Waiting& waiting) {
  const size_t bytes = tensor.nbytes();
  const size_t piece = PieceOf(bytes);
  const uint64_t pieces = Ceil(bytes, piece), first = pieces_;
  const size_t part = Ceil(Ceil(piece, size()), kCacheLine) * kCacheLine;
  const PieceRing::Slots slots = ring_.Take(piece, pieces);
  const bool has_result = root == kEveryRank || root == rank();
  for (uint64_t k = 0; k < pieces + 2; ++k) {
    if (k < pieces) {
      if (k >= kDepth) {
        SYNCLINE_RETURN_IF_ERROR(AwaitOthers(&RankArea::read, first + k - kDepth + 1, waiting));
      }
      const Range range(bytes, piece, k);
      const Range own(range.size, part, rank());
      const size_t end = own.begin + own.size;
      char* const to = board_.piece(rank(), slots.offset(k));
      const char* const from = Bytes(tensor) + range.begin;
      writer_.Write(to, from, own.begin);  // All but what nobody else needs.
      writer_.Write(to + end, from + end, range.size - end);
      Advance(&RankArea::written, first + k + 1);
    }
    if (k >= 1 && k <= pieces) {
      const uint64_t number = first + k - 1;
      SYNCLINE_RETURN_IF_ERROR(AwaitOthers(&RankArea::written, number + 1, waiting));
      const Range range(bytes, piece, k - 1);
      const Range own(range.size, part, rank());
      char* const mine = Bytes(tensor) + range.begin + own.begin;
      char* const result = board_.result(rank(), slots.slot(k - 1) * part);
      Inputs inputs;
      for (int r = 0; r < size(); ++r) {
        inputs.push_back(r == rank() ? mine : board_.piece(r, slots.offset(k - 1)) + own.begin);
      }
      if (own.size > 0) {
        syncline::Reduce(tensor.dtype(), op, has_result ? mine : result, inputs,
                         own.size / SizeOf(tensor.dtype()));
        if (root == kEveryRank) writer_.Write(result, mine, own.size);
      }
      Advance(&RankArea::reduced, number + 1);
      if (!has_result) Advance(&RankArea::read, number + 1);
    }
    if (k >= 2 && has_result) {
      const uint64_t number = first + k - 2;
      SYNCLINE_RETURN_IF_ERROR(AwaitOthers(&RankArea::reduced, number + 1, waiting));
      const Range range(bytes, piece, k - 2);
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        const Range theirs(range.size, part, r);
        Copy(Bytes(tensor) + range.begin + theirs.begin, board_.result(r, slots.slot(k - 2) * part),
             theirs.size);
      }
      Advance(&RankArea::read, number + 1);
    }
  }
  pieces_ += pieces;
  return absl::OkStatus();
}

absl::Status HostCollectives::AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                                        const CallContext& context) {
  size_t most = 0;
  for (const Tensor& output : outputs) most = std::max(most, output.nbytes());
  return Run(Call::AllGather(outputs, input, context), context, Eager(most),
             [&](Meeting& meeting) { return GatherTo(kEveryRank, outputs, input, most, meeting); });
}

absl::Status HostCollectives::Gather(absl::Span<const Tensor> outputs, const Tensor& input,
                                     int root, const CallContext& context) {
  return Run(
      Call::Gather(input, root, context), context, Eager(input.nbytes()),
      [&](Meeting& meeting) { return GatherTo(root, outputs, input, input.nbytes(), meeting); });
}

absl::Status HostCollectives::GatherTo(int root, absl::Span<const Tensor> outputs,
                                       const Tensor& input, size_t most, Meeting& meeting) {
  const size_t bytes = input.nbytes();
  const bool has_result = root == kEveryRank || root == rank();
  const bool is_short = most <= board_.sizes().eager;
  const auto take = [&](const auto& laid) {
    if (!has_result) return;
    for (int r = 0; r < size(); ++r) {
      const Tensor& output = outputs[r];
      Copy(output.data(), r == rank() ? input.data() : laid(r), output.nbytes());
    }
  };
  if (is_short) {
    if (root != rank()) writer_.Write(meeting.Table(), input.data(), bytes);
    SYNCLINE_RETURN_IF_ERROR(meeting.Open());
    take([&](int r) { return meeting.TableOf(r); });
    return absl::OkStatus();
  }
  const Sources sources = {kEveryRank, root};
  SYNCLINE_ASSIGN_OR_RETURN(const bool in_place,
                            in_place_.Open(meeting, most, sources, Only(input)));
  if (in_place) {
    take([&](int r) { return in_place_.DataOf(r); });
    return in_place_.Finish(sources, meeting.waiting());
  }
  if (size() == 1) {
    Copy(outputs[0].data(), input.data(), bytes);
    return absl::OkStatus();
  }
  const size_t piece = PieceOf(most);
  return Move(
      {meeting.waiting(), piece, Ceil(most, piece), kEveryRank, has_result},
      [&](uint64_t k, char* to) {
        const Range range(bytes, piece, k);
        if (root != rank()) writer_.Write(to, Bytes(input) + range.begin, range.size);
        if (has_result) {
          Copy(Bytes(outputs[rank()]) + range.begin, Bytes(input) + range.begin, range.size);
        }
      },
      [&](uint64_t k, size_t offset) {
        for (int r = 0; r < size(); ++r) {
          if (r == rank()) continue;
          const Range range(outputs[r].nbytes(), piece, k);
          Copy(Bytes(outputs[r]) + range.begin, board_.piece(r, offset), range.size);
        }
      });
}

// What a rank lays for others stands in a row, `room` bytes for each. take(begin, room, laid) takes
// up to `room` bytes from byte `begin` of each part on; laid(r) is what rank r has for this rank.

void HostCollectives::Lay(absl::Span<const Tensor> inputs, size_t room, uint64_t k, char* to) {
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const Range range(inputs[r].nbytes(), room, k);
    writer_.Write(to + PlaceOf(r, rank()) * room, Bytes(inputs[r]) + range.begin, range.size);
  }
}

template <typename Take>
absl::Status HostCollectives::Distribute(const Parts& parts, Meeting& meeting, const Take& take) {
  const size_t room = RoomFor(parts.most);
  const bool lays = !parts.inputs.empty(), takes = parts.from != rank();
  if (Laid(parts.most) < parts.most) {
    const Sources sources = {parts.from};
    SYNCLINE_ASSIGN_OR_RETURN(const bool in_place,
                              in_place_.Open(meeting, parts.most, sources, parts.inputs));
    if (!in_place) return DistributePieces(parts, meeting.waiting(), take);
    if (takes) take(0, parts.most, [&](int r) { return in_place_.DataOf(r) + parts.begin; });
    return in_place_.Finish(sources, meeting.waiting());
  }
  if (lays) Lay(parts.inputs, room, 0, meeting.Table());
  SYNCLINE_RETURN_IF_ERROR(meeting.Open());
  if (takes) take(0, room, [&](int r) { return meeting.TableOf(r) + PlaceOf(rank(), r) * room; });
  return absl::OkStatus();
}

template <typename Take>
absl::Status HostCollectives::DistributePieces(const Parts& parts, const Waiting& waiting,
                                               const Take& take) {
  const auto [piece, room] = board_.sizes().BlocksOf(parts.most, others());
  return Move(
      {waiting, piece, Ceil(parts.most, room), parts.from, parts.from != rank()},
      [&](uint64_t k, char* to) { Lay(parts.inputs, room, k, to); },
      [&](uint64_t k, size_t offset) {
        take(k * room, room,
             [&](int r) { return board_.piece(r, offset) + PlaceOf(rank(), r) * room; });
      });
}

absl::Status HostCollectives::Scatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                      int root, const CallContext& context) {
  return Run(
      Call::Scatter(output, root, context), context, Laid(output.nbytes()), [&](Meeting& meeting) {
        SYNCLINE_RETURN_IF_ERROR(Distribute(
            {root, inputs, output.nbytes(), rank() * output.nbytes()}, meeting,
            [&](size_t begin, size_t room, const auto& laid) {
              Copy(Bytes(output) + begin, laid(root), std::min(room, output.nbytes() - begin));
            }));
        if (root == rank()) Copy(output.data(), inputs[rank()].data(), output.nbytes());
        return absl::OkStatus();
      });
}

absl::Status HostCollectives::ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                            ReduceOp op, const CallContext& context) {
  size_t most = 0, begin = 0;
  for (int r = 0; r < size(); ++r) {
    most = std::max(most, inputs[r].nbytes());
    if (r < rank()) begin += inputs[r].nbytes();
  }
  return Run(
      Call::ReduceScatter(output, inputs, op, context), context, Laid(most), [&](Meeting& meeting) {
        return Distribute({kEveryRank, inputs, most, begin}, meeting,
                          [&](size_t begin, size_t room, const auto& laid) {
                            if (begin >= output.nbytes()) return;
                            const size_t bytes = std::min(room, output.nbytes() - begin);
                            Inputs parts;
                            for (int r = 0; r < size(); ++r) {
                              parts.push_back(r == rank() ? Bytes(inputs[r]) + begin : laid(r));
                            }
                            syncline::Reduce(output.dtype(), op, Bytes(output) + begin, parts,
                                             bytes / SizeOf(output.dtype()));
                          });
      });
}

absl::Status HostCollectives::AllToAll(absl::Span<const Tensor> outputs,
                                       absl::Span<const Tensor> inputs,
                                       const CallContext& context) {
  const auto take = [&](size_t begin, size_t room, const auto& laid) {
    for (int r = 0; r < size(); ++r) {
      if (r == rank() || begin >= outputs[r].nbytes()) continue;
      Copy(Bytes(outputs[r]) + begin, laid(r), std::min(room, outputs[r].nbytes() - begin));
    }
  };
  // Only after the meeting do ranks know how much the others lay: least, in the header, or little,
  // in the near table, or more, in the far one; each rank tells by what it says that its largest
  // part is.
  const size_t far_room = RoomIn(board_.sizes().eager), near_room = RoomIn(board_.sizes().near);
  // Run takes the far table. Where buffers are so small that this is a near one, it is all there
  // is: whoever takes two takes the same ones in each call, and one may still be in use.
  const bool has_far = !tables_.IsNear(board_.sizes().eager);
  const size_t near = has_far ? tables_.Take(board_.sizes().near) : tables_.next_near();
  const size_t unit = SizeOf(inputs[0].dtype());
  const auto is_least = [&](size_t most) { return most * others() <= Meeting::kBesideSplits; };
  size_t laid_near = 0;
  const absl::Status status =
      Run(Call::AllToAll(outputs, inputs, context), context, board_.sizes().eager,
          [&](Meeting& meeting) {
            const size_t own_most = meeting.LaySplits() * unit;
            if (is_least(own_most)) {
              Lay(inputs, own_most, 0, meeting.BesideSplits());
            } else if (own_most <= near_room) {
              Lay(inputs, near_room, 0, board_.table(rank(), near));
              laid_near = near_room * (others() - 1) + own_most;
            } else if (own_most <= far_room) {
              Lay(inputs, far_room, 0, meeting.Table());
            }
            SYNCLINE_RETURN_IF_ERROR(meeting.Open());
            SYNCLINE_ASSIGN_OR_RETURN(const int64_t elements, meeting.AgreeOnSplits());
            Copy(outputs[rank()].data(), inputs[rank()].data(), inputs[rank()].nbytes());
            const size_t most = elements * unit;
            if (most > far_room) {
              return DistributePieces({kEveryRank, inputs, most, 0}, meeting.waiting(), take);
            }
            take(0, most, [&](int r) -> const char* {
              const size_t their_most = meeting.MostOf(r) * unit, place = PlaceOf(rank(), r);
              if (is_least(their_most)) return meeting.BesideSplitsOf(r) + place * their_most;
              return their_most <= near_room ? board_.table(r, near) + place * near_room
                                             : meeting.TableOf(r) + place * far_room;
            });
            return absl::OkStatus();
          });
  PrepareNear(laid_near);
  return status;
}

}  // namespace syncline
