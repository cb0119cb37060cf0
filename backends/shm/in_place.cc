#include "backends/shm/in_place.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "backends/shm/ranges.h"
#include "core/base/status.h"
#include "core/tensor/reduce_kernels.h"

namespace syncline {
namespace {

// What all_reduce writes at once on the slow way.
constexpr size_t kBlock = 8 << 10;

// Where cores share no cache, to write a line that another core still has costs so much that it is
// faster to copy tensors of which they may have much. Then so many calls go by before another look.
constexpr size_t kBeyondCaches = 16 << 20;
constexpr int kCallsBetweenTrials = 200;

// Where only the root reads, or only the root is read, it is main memory that counts from here on,
// and cores that move data through buffers get more out of it together.
constexpr size_t kTooMuchForOne = 8 << 20;

// Whether they stand one after the other, without gaps, as ranks expect it of what they read.
bool IsRow(absl::Span<const Tensor> tensors) {
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (Bytes(tensors[i - 1]) + tensors[i - 1].nbytes() != Bytes(tensors[i])) return false;
  }
  return !tensors.empty();
}

size_t BytesOf(absl::Span<const Tensor> tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace

absl::StatusOr<bool> InPlace::Open(Meeting& meeting, size_t bytes, const Sources& sources,
                                   absl::Span<const Tensor> own) {
  const bool has_root = sources.from != kEveryRank || sources.but >= 0;
  if (bytes < least_ || size() == 1 || (has_root && bytes >= kTooMuchForOne)) {
    SYNCLINE_RETURN_IF_ERROR(meeting.Open());
    return false;
  }
  const bool offers = sources.Has(rank()) && IsRow(own);
  return OpenWith(offers ? own[0].data() : nullptr, BytesOf(own), sources, meeting);
}

absl::StatusOr<bool> InPlace::OpenAllReduce(Meeting& meeting, const Tensor& tensor) {
  const size_t bytes = tensor.nbytes();
  if (bytes < least_ || size() == 1) {
    SYNCLINE_RETURN_IF_ERROR(meeting.Open());
    return false;
  }
  const bool offers = bytes >= kBeyondCaches || until_trial_ == 0;
  if (!offers) --until_trial_;
  return OpenWith(offers ? tensor.data() : nullptr, bytes, {}, meeting);
}

absl::StatusOr<bool> InPlace::OpenWith(const void* data, size_t bytes, const Sources& sources,
                                       Meeting& meeting) {
  tensors_.MakeOffer(data, bytes, meeting);
  SYNCLINE_RETURN_IF_ERROR(meeting.Open());
  return tensors_.Agree(sources, meeting);
}

void InPlace::Advance(uint64_t steps) {
  RankArea& own = board_.area(rank());
  own.steps.store(steps, std::memory_order_release);
  vigil_.Ring(own.done);
}

absl::Status InPlace::Await(int rank, uint64_t steps, const Waiting& waiting) {
  RankArea& area = board_.area(rank);
  return vigil_.Await(area.done, rank, waiting,
                      [&] { return area.steps.load(std::memory_order_acquire) >= steps; });
}

absl::Status InPlace::Finish(const Sources& sources, const Waiting& waiting) {
  // A source may have given up, and used its tensor for something else, while this rank read there.
  SYNCLINE_RETURN_IF_ERROR(vigil_.CheckIntact(waiting.call));
  Advance(++steps_);
  if (!sources.Has(rank())) return absl::OkStatus();
  for (int r = 0; r < size(); ++r) SYNCLINE_RETURN_IF_ERROR(Await(r, steps_, waiting));
  return absl::OkStatus();
}

// The first block goes by way of memory of this core, to see how fast the tensor can be written;
// the others too, past the caches, if that was slow.
void InPlace::Reduce(const Tensor& tensor, ReduceOp op, size_t begin, size_t bytes) {
  absl::InlinedVector<const void*, 8> inputs(size());
  alignas(kCacheLine) char block[kBlock];
  for (size_t at = begin, end = begin + bytes; at < end;) {
    const bool by_block = at == begin || reduced_.streams();
    const size_t taken = by_block ? std::min(kBlock, end - at) : end - at;
    for (int r = 0; r < size(); ++r) inputs[r] = DataOf(r) + at;
    char* const to = Bytes(tensor) + at;
    syncline::Reduce(tensor.dtype(), op, by_block ? block : to, inputs,
                     taken / SizeOf(tensor.dtype()));
    if (by_block) reduced_.Write(to, block, taken);
    at += taken;
  }
}

// A reduce-scatter and then an all-gather on each piece, as ReduceInParts of collectives.cc. Of the
// k-th part of each piece, only rank k reads what the ranks brought, and only it writes the result
// for others to read.
absl::Status InPlace::AllReduce(const Tensor& tensor, ReduceOp op, const Waiting& waiting) {
  const size_t bytes = tensor.nbytes();
  const size_t piece = board_.sizes().PieceOf(bytes, board_.sizes().in_place_piece);
  const size_t part = Ceil(Ceil(piece, size()), kCacheLine) * kCacheLine;
  const uint64_t pieces = Ceil(bytes, piece), first = steps_;
  for (uint64_t k = 0; k <= pieces; ++k) {
    if (k < pieces) {
      const Range range(bytes, piece, k);
      const Range own(range.size, part, rank());
      if (own.size > 0) Reduce(tensor, op, range.begin + own.begin, own.size);
      Advance(first + k + 1);
    }
    if (k == 0) continue;
    const Range range(bytes, piece, k - 1);
    for (int i = 1; i < size(); ++i) {
      const int r = (rank() + i) % size();
      const Range theirs(range.size, part, r);
      const size_t begin = range.begin + theirs.begin;
      SYNCLINE_RETURN_IF_ERROR(Await(r, first + k, waiting));
      gathered_.Write(Bytes(tensor) + begin, DataOf(r) + begin, theirs.size);
    }
  }
  if (reduced_.streams() || gathered_.streams()) until_trial_ = kCallsBetweenTrials;
  steps_ += pieces;
  return Finish({}, waiting);
}

}  // namespace syncline
