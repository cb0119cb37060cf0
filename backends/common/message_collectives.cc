#include "backends/common/message_collectives.h"

#include <algorithm>
#include <cstdint>

#include "backends/common/tensor_steps.h"
#include "core/tensor/reduce_kernels.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

// One rank's part of a reduce-scatter, in pieces. Messages of one pair arrive in order, so the
// pieces need no numbers.
class PipelinedReduceScatter {
 public:
  PipelinedReduceScatter(MessageTransport& transport, const Tensor& output,
                         absl::Span<const Tensor> inputs, ReduceOp op, size_t piece_bytes,
                         ScratchArena& scratch)
      : rank_(transport.rank()),
        size_(transport.size()),
        output_(output),
        inputs_(inputs),
        op_(op),
        element_bytes_(SizeOf(output.dtype())),
        piece_(std::min<int64_t>(piece_bytes / element_bytes_, Longest(inputs))),
        scratch_(scratch.Allocate(output.dtype(), 2 * (size_ - 1) * OwnPiece(0))),
        messages_{transport.NewMessages(), transport.NewMessages()} {}

  // All ranks run through as many pieces as the longest part has, so that none waits for a message
  // that its peer does not send.
  absl::Status Run() {
    const int64_t longest = Longest(inputs_);
    if (longest == 0) return absl::OkStatus();
    const int64_t pieces = (longest + piece_ - 1) / piece_;
    for (int64_t i = 0; i <= pieces; ++i) {
      if (i < pieces) Start(i);
      if (i > 0) SYNCLINE_RETURN_IF_ERROR(Finish(i - 1));
    }
    return absl::OkStatus();
  }

 private:
  static int64_t Longest(absl::Span<const Tensor> inputs) {
    int64_t longest = 0;
    for (const Tensor& input : inputs) longest = std::max(longest, input.numel());
    return longest;
  }

  // The number of elements in piece `i` of a tensor.
  int64_t PieceOf(const Tensor& tensor, int64_t i) const {
    return std::clamp<int64_t>(tensor.numel() - i * piece_, 0, piece_);
  }
  int64_t OwnPiece(int64_t i) const { return PieceOf(output_, i); }

  std::byte* At(const Tensor& tensor, int64_t i) const {
    return tensor.data_as<std::byte>() + i * piece_ * element_bytes_;
  }

  // The scratch memory for piece `i` of rank `from`. Even and odd pieces have memory of their own,
  // since one arrives while the other is combined.
  std::byte* ScratchFor(int64_t i, int from) const {
    const int index = (i % 2) * (size_ - 1) + (from < rank_ ? from : from - 1);
    return scratch_.data_as<std::byte>() + index * OwnPiece(0) * element_bytes_;
  }

  // Rank r begins with its neighbours, here and below, so that no rank is sent to by all at once.
  void Start(int64_t i) {
    Messages& messages = *messages_[i % 2];
    for (int distance = 1; distance < size_; ++distance) {
      const int from = (rank_ - distance + size_) % size_;
      messages.Receive(from, ScratchFor(i, from), OwnPiece(i) * element_bytes_);
      const int to = (rank_ + distance) % size_;
      const Tensor& input = inputs_[to];
      messages.Send(to, At(input, i), PieceOf(input, i) * element_bytes_);
    }
  }

  absl::Status Finish(int64_t i) {
    SYNCLINE_RETURN_IF_ERROR(messages_[i % 2]->Wait());
    if (OwnPiece(i) == 0) return absl::OkStatus();
    // In the order of the ranks on every rank, so that all round alike.
    std::vector<const void*> terms(size_);
    for (int rank = 0; rank < size_; ++rank) {
      terms[rank] = rank == rank_ ? At(inputs_[rank], i) : ScratchFor(i, rank);
    }
    tensor::Reduce(output_.dtype(), op_, At(output_, i), terms, OwnPiece(i));
    return absl::OkStatus();
  }

  const int rank_;
  const int size_;
  const Tensor& output_;
  const absl::Span<const Tensor> inputs_;
  const ReduceOp op_;
  const size_t element_bytes_;
  const int64_t piece_;  // Elements.
  const Tensor scratch_;
  const std::unique_ptr<Messages> messages_[2];
};

}  // namespace

MessageCollectives::MessageCollectives(MessageTransport& transport,
                                       const MessageThresholds& thresholds, ScratchArena& scratch)
    : transport_(transport),
      thresholds_(thresholds),
      scratch_(scratch),
      rank_(transport.rank()),
      size_(transport.size()) {
  scratch_.Reset();
}

// Ranks are counted from the root. A rank receives from the one whose number lacks its lowest set
// bit, and then sends to those that it makes by setting each lower bit, the highest first.
absl::Status MessageCollectives::Broadcast(const Tensor& tensor, int root) {
  const int position = (rank_ - root + size_) % size_;
  const auto rank_at = [&](int at) { return (at + root) % size_; };
  const auto messages = transport_.NewMessages();
  int bit = 1;
  while (bit < size_ && (position & bit) == 0) bit <<= 1;
  if (position != 0) {
    messages->Receive(rank_at(position - bit), tensor.data(), tensor.nbytes());
    SYNCLINE_RETURN_IF_ERROR(messages->Wait());
  }
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (position + bit >= size_) continue;
    messages->Send(rank_at(position + bit), tensor.data(), tensor.nbytes());
  }
  return messages->Wait();
}

// Below the threshold every rank combines everything itself, in one exchange. Above it each element
// crosses twice, whatever the number of ranks, in two exchanges.
absl::Status MessageCollectives::AllReduce(const Tensor& tensor, ReduceOp op) {
  if (tensor.nbytes() <= thresholds_.direct_reduce_max) {
    std::vector<int> all(size_);
    for (int rank = 0; rank < size_; ++rank) all[rank] = rank;
    return DirectReduce(tensor, op, all);
  }
  const std::vector<Tensor> parts = tensor.SplitEvenly(size_);
  SYNCLINE_RETURN_IF_ERROR(ReduceScatter(parts[rank_], parts, op));
  return AllGather(parts, parts[rank_]);
}

absl::Status MessageCollectives::Reduce(const Tensor& tensor, ReduceOp op, int root) {
  if (tensor.nbytes() <= thresholds_.direct_reduce_max) return DirectReduce(tensor, op, {root});
  const std::vector<Tensor> parts = tensor.SplitEvenly(size_);
  if (rank_ == root) {
    SYNCLINE_RETURN_IF_ERROR(ReduceScatter(parts[rank_], parts, op));
    return Gather(parts, parts[rank_], root);
  }
  // The elements of the other ranks must stay as they are. Not in the arena, which would keep it:
  // it may be large. Nor initialized.
  const std::shared_ptr<std::byte[]> memory(new std::byte[parts[rank_].nbytes()]);
  const Tensor result(memory.get(), tensor.dtype(), {parts[rank_].numel()}, {}, {}, memory);
  SYNCLINE_RETURN_IF_ERROR(ReduceScatter(result, parts, op));
  return Gather({}, result, root);
}

// This rank copies its own part while the others' are under way; so in the next ones.
absl::Status MessageCollectives::AllGather(absl::Span<const Tensor> outputs, const Tensor& input) {
  const auto messages = transport_.NewMessages();
  for (int distance = 1; distance < size_; ++distance) {
    const int from = (rank_ - distance + size_) % size_;
    messages->Receive(from, outputs[from].data(), outputs[from].nbytes());
    messages->Send((rank_ + distance) % size_, input.data(), input.nbytes());
  }
  CopyElements(input, outputs[rank_]);
  return messages->Wait();
}

absl::Status MessageCollectives::Gather(absl::Span<const Tensor> outputs, const Tensor& input,
                                        int root) {
  const auto messages = transport_.NewMessages();
  if (rank_ == root) {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != root) messages->Receive(rank, outputs[rank].data(), outputs[rank].nbytes());
    }
    CopyElements(input, outputs[rank_]);
  } else {
    messages->Keep(input.owner());
    messages->Send(root, input.data(), input.nbytes());
  }
  return messages->Wait();
}

absl::Status MessageCollectives::Scatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                         int root) {
  const auto messages = transport_.NewMessages();
  if (rank_ == root) {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != root) messages->Send(rank, inputs[rank].data(), inputs[rank].nbytes());
    }
    CopyElements(inputs[rank_], output);
  } else {
    messages->Receive(root, output.data(), output.nbytes());
  }
  return messages->Wait();
}

absl::Status MessageCollectives::ReduceScatter(const Tensor& output,
                                               absl::Span<const Tensor> inputs, ReduceOp op) {
  return PipelinedReduceScatter(transport_, output, inputs, op, thresholds_.piece, scratch_).Run();
}

// In pieces, so that what is on its way stays in the caches of both sides, and a rank copies its
// own part while others' pieces come. Two pieces for each peer are under way.
absl::Status MessageCollectives::AllToAll(absl::Span<const Tensor> outputs,
                                          absl::Span<const Tensor> inputs) {
  int64_t longest = 0;
  for (const Tensor& tensor : outputs) longest = std::max(longest, tensor.numel());
  for (const Tensor& tensor : inputs) longest = std::max(longest, tensor.numel());
  const int64_t each = std::max<int64_t>(thresholds_.piece / SizeOf(outputs[0].dtype()), 1);
  // Of a tensor that is shorter, the last piece is so too, and those beyond are empty.
  const auto piece = [&](const Tensor& tensor, int64_t i) {
    const int64_t begin = std::min(i * each, tensor.numel());
    return tensor.Slice(begin, std::min(each, tensor.numel() - begin));
  };
  std::unique_ptr<Messages> before;
  for (int64_t i = 0; i == 0 || i * each < longest; ++i) {
    auto messages = transport_.NewMessages();
    for (int distance = 1; distance < size_; ++distance) {
      const int from = (rank_ - distance + size_) % size_;
      const Tensor output = piece(outputs[from], i);
      messages->Receive(from, output.data(), output.nbytes());
      const int to = (rank_ + distance) % size_;
      const Tensor input = piece(inputs[to], i);
      messages->Send(to, input.data(), input.nbytes());
    }
    CopyElements(piece(inputs[rank_], i), piece(outputs[rank_], i));
    if (before != nullptr) SYNCLINE_RETURN_IF_ERROR(before->Wait());
    before = std::move(messages);
  }
  return before->Wait();
}

absl::Status MessageCollectives::DirectReduce(const Tensor& tensor, ReduceOp op,
                                              absl::Span<const int> receivers) {
  if (tensor.numel() == 0) return absl::OkStatus();
  const bool receives = std::find(receivers.begin(), receivers.end(), rank_) != receivers.end();
  const Tensor scratch = scratch_.Allocate(tensor.dtype(), receives ? tensor.numel() * size_ : 0);
  std::vector<const void*> terms;
  const auto messages = transport_.NewMessages();
  for (int rank = 0; receives && rank < size_; ++rank) {
    std::byte* const theirs = scratch.data_as<std::byte>() + rank * tensor.nbytes();
    terms.push_back(rank == rank_ ? tensor.data() : theirs);
    if (rank != rank_) messages->Receive(rank, theirs, tensor.nbytes());
  }
  for (const int receiver : receivers) {
    if (receiver != rank_) messages->Send(receiver, tensor.data(), tensor.nbytes());
  }
  SYNCLINE_RETURN_IF_ERROR(messages->Wait());
  if (receives) tensor::Reduce(tensor.dtype(), op, tensor.data(), terms, tensor.numel());
  return absl::OkStatus();
}

}  // namespace syncline::backends
