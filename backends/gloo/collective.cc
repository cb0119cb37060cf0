#include "backends/gloo/collective.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "backends/gloo/slots.h"
#include "backends/gloo/transfers.h"
#include "core/tensor/reduce_kernels.h"
#include "gloo/broadcast.h"

namespace syncline {
namespace {

// Reductions of fewer bytes are not shared out: every rank that needs the result receives all, in
// one exchange instead of two.
constexpr size_t kSmallBytes = 16 << 10;

// Of what is received to be combined, this much of each rank is in memory twice: one piece arrives
// while the one before is combined.
constexpr size_t kPieceBytes = 1 << 20;

// Memory whose bytes nobody has written.
class Scratch {
 public:
  explicit Scratch(size_t nbytes) : bytes_(new std::byte[nbytes]) {}
  std::byte* data() const { return bytes_.get(); }

 private:
  std::unique_ptr<std::byte[]> bytes_;
};

void Copy(const Tensor& from, const Tensor& to) {
  if (from.nbytes() == 0 || from.data() == to.data()) return;
  std::memcpy(to.data(), from.data(), from.nbytes());
}

// One rank's part of a reduce-scatter, piece by piece.
class Reducer {
 public:
  Reducer(gloo::Context& gloo, uint64_t slot, const Tensor& output, absl::Span<const Tensor> inputs,
          ReduceOp op)
      : gloo_(gloo),
        output_(output),
        inputs_(inputs),
        op_(op),
        element_bytes_(SizeOf(output.dtype())),
        piece_(std::min<int64_t>(kPieceBytes / element_bytes_, Longest(inputs))),
        scratch_(2 * (gloo.size - 1) * OwnPiece(0) * element_bytes_),
        transfers_{Transfers(gloo, slot), Transfers(gloo, slot)} {}

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

  // Elements of piece `i` of a tensor.
  int64_t PieceOf(const Tensor& tensor, int64_t i) const {
    return std::clamp<int64_t>(tensor.numel() - i * piece_, 0, piece_);
  }
  int64_t OwnPiece(int64_t i) const { return PieceOf(output_, i); }

  std::byte* At(const Tensor& tensor, int64_t i) const {
    return tensor.data_as<std::byte>() + i * piece_ * element_bytes_;
  }

  // Where piece `i` of what rank `from` adds to this rank's part arrives.
  std::byte* Arrival(int64_t i, int from) const {
    const int place = (i % 2) * (gloo_.size - 1) + (from < gloo_.rank ? from : from - 1);
    return scratch_.data() + place * OwnPiece(0) * element_bytes_;
  }

  void Start(int64_t i) {
    Transfers& transfers = transfers_[i % 2];
    for (int distance = 1; distance < gloo_.size; ++distance) {
      const int from = (gloo_.rank - distance + gloo_.size) % gloo_.size;
      transfers.Receive(from, Arrival(i, from), OwnPiece(i) * element_bytes_);
      const int to = (gloo_.rank + distance) % gloo_.size;
      const Tensor& input = inputs_[to];
      transfers.Send(to, At(input, i), PieceOf(input, i) * element_bytes_);
    }
  }

  void Finish(int64_t i) {
    transfers_[i % 2].Wait();
    if (OwnPiece(i) == 0) return;
    std::vector<const void*> terms(gloo_.size);
    for (int rank = 0; rank < gloo_.size; ++rank) {
      terms[rank] = rank == gloo_.rank ? At(inputs_[rank], i) : Arrival(i, rank);
    }
    syncline::Reduce(output_.dtype(), op_, At(output_, i), terms, OwnPiece(i));
  }

  gloo::Context& gloo_;
  const Tensor& output_;
  const absl::Span<const Tensor> inputs_;
  const ReduceOp op_;
  const size_t element_bytes_;
  const int64_t piece_;  // Elements.
  const Scratch scratch_;
  Transfers transfers_[2];
};

}  // namespace

Collective::Collective(std::shared_ptr<gloo::Context> gloo, uint64_t sequence)
    : gloo_(std::move(gloo)),
      rank_(gloo_->rank),
      size_(gloo_->size),
      tag_(static_cast<uint32_t>(sequence)) {}

void Collective::Broadcast(const Tensor& tensor, int root) {
  if (tensor.numel() == 0 || size_ == 1) return;
  gloo::BroadcastOptions options(gloo_);
  options.setOutput(tensor.data_as<uint8_t>(), tensor.nbytes());
  options.setRoot(root);
  options.setTag(tag_);
  gloo::broadcast(options);
}

void Collective::AllReduce(const Tensor& tensor, ReduceOp op) {
  if (tensor.nbytes() <= kSmallBytes) {
    std::vector<int> all(size_);
    for (int rank = 0; rank < size_; ++rank) all[rank] = rank;
    return ReduceAtOnce(tensor, op, all);
  }
  const std::vector<Tensor> parts = Share(tensor);
  ReduceScatter(parts[rank_], parts, op);
  AllGather(parts, parts[rank_]);
}

void Collective::Reduce(const Tensor& tensor, ReduceOp op, int root) {
  if (tensor.nbytes() <= kSmallBytes) return ReduceAtOnce(tensor, op, {root});
  const std::vector<Tensor> parts = Share(tensor);
  if (rank_ == root) {
    ReduceScatter(parts[rank_], parts, op);
    return Gather(parts, parts[rank_], root);
  }
  const Scratch scratch(parts[rank_].nbytes());
  const Tensor result(scratch.data(), tensor.dtype(), {parts[rank_].numel()});
  ReduceScatter(result, parts, op);
  Gather({}, result, root);
}

// Rank r begins with its right neighbour, here and below, so that nobody is sent to by all at once.
void Collective::AllGather(absl::Span<const Tensor> outputs, const Tensor& input) {
  Copy(input, outputs[rank_]);
  Transfers transfers(*gloo_, kCollectiveSlot + tag_);
  for (int distance = 1; distance < size_; ++distance) {
    const int from = (rank_ - distance + size_) % size_;
    transfers.Receive(from, outputs[from].data(), outputs[from].nbytes());
    transfers.Send((rank_ + distance) % size_, input.data(), input.nbytes());
  }
  transfers.Wait();
}

void Collective::Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root) {
  Transfers transfers(*gloo_, kCollectiveSlot + tag_);
  if (rank_ == root) {
    Copy(input, outputs[rank_]);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != root) transfers.Receive(rank, outputs[rank].data(), outputs[rank].nbytes());
    }
  } else {
    transfers.Send(root, input.data(), input.nbytes());
  }
  transfers.Wait();
}

void Collective::Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root) {
  Transfers transfers(*gloo_, kCollectiveSlot + tag_);
  if (rank_ == root) {
    Copy(inputs[rank_], output);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != root) transfers.Send(rank, inputs[rank].data(), inputs[rank].nbytes());
    }
  } else {
    transfers.Receive(root, output.data(), output.nbytes());
  }
  transfers.Wait();
}

void Collective::ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op) {
  Reducer(*gloo_, kCollectiveSlot + tag_, output, inputs, op).Run();
}

void Collective::AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs) {
  Copy(inputs[rank_], outputs[rank_]);
  Transfers transfers(*gloo_, kCollectiveSlot + tag_);
  for (int distance = 1; distance < size_; ++distance) {
    const int from = (rank_ - distance + size_) % size_;
    transfers.Receive(from, outputs[from].data(), outputs[from].nbytes());
    const int to = (rank_ + distance) % size_;
    transfers.Send(to, inputs[to].data(), inputs[to].nbytes());
  }
  transfers.Wait();
}

std::vector<Tensor> Collective::Share(const Tensor& tensor) const {
  std::vector<Tensor> parts;
  const int64_t each = tensor.numel() / size_, more = tensor.numel() % size_;
  int64_t offset = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const int64_t count = each + (rank < more ? 1 : 0);
    parts.push_back(tensor.Slice(offset, count));
    offset += count;
  }
  return parts;
}

// To `receivers`, from every rank.
void Collective::ReduceAtOnce(const Tensor& tensor, ReduceOp op, absl::Span<const int> receivers) {
  if (tensor.numel() == 0) return;
  const bool receives = std::find(receivers.begin(), receivers.end(), rank_) != receivers.end();
  const Scratch scratch(receives ? tensor.nbytes() * size_ : 0);
  std::vector<const void*> terms;
  Transfers transfers(*gloo_, kCollectiveSlot + tag_);
  for (int rank = 0; receives && rank < size_; ++rank) {
    std::byte* const place = scratch.data() + rank * tensor.nbytes();
    terms.push_back(rank == rank_ ? tensor.data() : place);
    if (rank != rank_) transfers.Receive(rank, place, tensor.nbytes());
  }
  for (const int receiver : receivers) {
    if (receiver != rank_) transfers.Send(receiver, tensor.data(), tensor.nbytes());
  }
  transfers.Wait();
  if (receives) syncline::Reduce(tensor.dtype(), op, tensor.data(), terms, tensor.numel());
}

}  // namespace syncline
