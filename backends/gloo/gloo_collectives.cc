#include "backends/gloo/gloo_collectives.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "backends/common/tensor_steps.h"
#include "backends/gloo/slots.h"
#include "backends/gloo/thresholds.h"
#include "backends/gloo/transfers.h"
#include "core/tensor/reduce_kernels.h"
#include "gloo/broadcast.h"

namespace syncline::gloo_backend {
namespace {

// Memory that is not initialized, which std::vector would do.
class ScratchBuffer {
 public:
  explicit ScratchBuffer(size_t nbytes) : bytes_(new std::byte[nbytes]) {}
  std::byte* data() const { return bytes_.get(); }

 private:
  std::unique_ptr<std::byte[]> bytes_;
};

// One rank's part of a reduce-scatter, in pieces of kReducePieceBytes. Messages on one slot arrive
// in order, so the pieces of one pair need no numbers.
class PipelinedReduceScatter {
 public:
  PipelinedReduceScatter(gloo::Context& gloo, uint64_t slot, const Tensor& output,
                         absl::Span<const Tensor> inputs, ReduceOp op)
      : gloo_(gloo),
        output_(output),
        inputs_(inputs),
        op_(op),
        element_bytes_(SizeOf(output.dtype())),
        piece_(std::min<int64_t>(kReducePieceBytes / element_bytes_, Longest(inputs))),
        scratch_(2 * (gloo.size - 1) * OwnPiece(0) * element_bytes_),
        transfers_{Transfers(gloo, slot), Transfers(gloo, slot)} {}

  // All ranks run through as many pieces as the longest part has, so that none waits for a message
  // that its peer does not send.
  void Run() {
    const int64_t longest = Longest(inputs_);
    if (longest == 0) return;
    const int64_t pieces = (longest + piece_ - 1) / piece_;
    for (int64_t i = 0; i <= pieces; ++i) {
      if (i < pieces) Start(i);
      if (i > 0) Finish(i - 1);
    }
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
    const int index = (i % 2) * (gloo_.size - 1) + (from < gloo_.rank ? from : from - 1);
    return scratch_.data() + index * OwnPiece(0) * element_bytes_;
  }

  // Rank r begins with its neighbours, here and below, so that no rank is sent to by all at once.
  void Start(int64_t i) {
    Transfers& transfers = transfers_[i % 2];
    for (int distance = 1; distance < gloo_.size; ++distance) {
      const int from = (gloo_.rank - distance + gloo_.size) % gloo_.size;
      transfers.Receive(from, ScratchFor(i, from), OwnPiece(i) * element_bytes_);
      const int to = (gloo_.rank + distance) % gloo_.size;
      const Tensor& input = inputs_[to];
      transfers.Send(to, At(input, i), PieceOf(input, i) * element_bytes_);
    }
  }

  void Finish(int64_t i) {
    transfers_[i % 2].Wait();
    if (OwnPiece(i) == 0) return;
    // In the order of the ranks on every rank, so that all round alike.
    std::vector<const void*> terms(gloo_.size);
    for (int rank = 0; rank < gloo_.size; ++rank) {
      terms[rank] = rank == gloo_.rank ? At(inputs_[rank], i) : ScratchFor(i, rank);
    }
    tensor::Reduce(output_.dtype(), op_, At(output_, i), terms, OwnPiece(i));
  }

  gloo::Context& gloo_;
  const Tensor& output_;
  const absl::Span<const Tensor> inputs_;
  const ReduceOp op_;
  const size_t element_bytes_;
  const int64_t piece_;  // Elements.
  const ScratchBuffer scratch_;
  Transfers transfers_[2];
};

}  // namespace

GlooCollectives::GlooCollectives(std::shared_ptr<gloo::Context> gloo, uint64_t sequence)
    : gloo_(std::move(gloo)),
      rank_(gloo_->rank),
      size_(gloo_->size),
      tag_(static_cast<uint32_t>(sequence)) {}

void GlooCollectives::Broadcast(const Tensor& tensor, int root) {
  if (tensor.numel() == 0 || size_ == 1) return;
  gloo::BroadcastOptions options(gloo_);
  options.setOutput(tensor.data_as<uint8_t>(), tensor.nbytes());
  options.setRoot(root);
  options.setTag(tag_);
  gloo::broadcast(options);
}

// Below the threshold every rank combines everything itself, in one exchange. Above it each element
// crosses twice, whatever the number of ranks, in two exchanges.
void GlooCollectives::AllReduce(const Tensor& tensor, ReduceOp op) {
  if (tensor.nbytes() <= kDirectReduceMaxBytes) {
    std::vector<int> all(size_);
    for (int rank = 0; rank < size_; ++rank) all[rank] = rank;
    return DirectReduce(tensor, op, all);
  }
  const std::vector<Tensor> parts = tensor.SplitEvenly(size_);
  ReduceScatter(parts[rank_], parts, op);
  AllGather(parts, parts[rank_]);
}

void GlooCollectives::Reduce(const Tensor& tensor, ReduceOp op, int root) {
  if (tensor.nbytes() <= kDirectReduceMaxBytes) return DirectReduce(tensor, op, {root});
  const std::vector<Tensor> parts = tensor.SplitEvenly(size_);
  if (rank_ == root) {
    ReduceScatter(parts[rank_], parts, op);
    return Gather(parts, parts[rank_], root);
  }
  // The elements of the other ranks must stay as they are.
  const ScratchBuffer scratch(parts[rank_].nbytes());
  const Tensor result(scratch.data(), tensor.dtype(), {parts[rank_].numel()});
  ReduceScatter(result, parts, op);
  Gather({}, result, root);
}

void GlooCollectives::AllGather(absl::Span<const Tensor> outputs, const Tensor& input) {
  backends::CopyElements(input, outputs[rank_]);
  Transfers transfers(*gloo_, kCollectiveSlot + tag_);
  for (int distance = 1; distance < size_; ++distance) {
    const int from = (rank_ - distance + size_) % size_;
    transfers.Receive(from, outputs[from].data(), outputs[from].nbytes());
    transfers.Send((rank_ + distance) % size_, input.data(), input.nbytes());
  }
  transfers.Wait();
}

void GlooCollectives::Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root) {
  Transfers transfers(*gloo_, kCollectiveSlot + tag_);
  if (rank_ == root) {
    backends::CopyElements(input, outputs[rank_]);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != root) transfers.Receive(rank, outputs[rank].data(), outputs[rank].nbytes());
    }
  } else {
    transfers.Send(root, input.data(), input.nbytes());
  }
  transfers.Wait();
}

void GlooCollectives::Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root) {
  Transfers transfers(*gloo_, kCollectiveSlot + tag_);
  if (rank_ == root) {
    backends::CopyElements(inputs[rank_], output);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != root) transfers.Send(rank, inputs[rank].data(), inputs[rank].nbytes());
    }
  } else {
    transfers.Receive(root, output.data(), output.nbytes());
  }
  transfers.Wait();
}

void GlooCollectives::ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                    ReduceOp op) {
  PipelinedReduceScatter(*gloo_, kCollectiveSlot + tag_, output, inputs, op).Run();
}

void GlooCollectives::AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs) {
  backends::CopyElements(inputs[rank_], outputs[rank_]);
  Transfers transfers(*gloo_, kCollectiveSlot + tag_);
  for (int distance = 1; distance < size_; ++distance) {
    const int from = (rank_ - distance + size_) % size_;
    transfers.Receive(from, outputs[from].data(), outputs[from].nbytes());
    const int to = (rank_ + distance) % size_;
    transfers.Send(to, inputs[to].data(), inputs[to].nbytes());
  }
  transfers.Wait();
}

void GlooCollectives::DirectReduce(const Tensor& tensor, ReduceOp op,
                                   absl::Span<const int> receivers) {
  if (tensor.numel() == 0) return;
  const bool receives = std::find(receivers.begin(), receivers.end(), rank_) != receivers.end();
  const ScratchBuffer scratch(receives ? tensor.nbytes() * size_ : 0);
  std::vector<const void*> terms;
  Transfers transfers(*gloo_, kCollectiveSlot + tag_);
  for (int rank = 0; receives && rank < size_; ++rank) {
    std::byte* const theirs = scratch.data() + rank * tensor.nbytes();
    terms.push_back(rank == rank_ ? tensor.data() : theirs);
    if (rank != rank_) transfers.Receive(rank, theirs, tensor.nbytes());
  }
  for (const int receiver : receivers) {
    if (receiver != rank_) transfers.Send(receiver, tensor.data(), tensor.nbytes());
  }
  transfers.Wait();
  if (receives) tensor::Reduce(tensor.dtype(), op, tensor.data(), terms, tensor.numel());
}

}  // namespace syncline::gloo_backend
