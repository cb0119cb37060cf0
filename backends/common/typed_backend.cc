#include "backends/common/typed_backend.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/tensor/reduce_kernels.h"
#include "syncline/dtype.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

// What ReducePrefix gathers of each rank at a time.
constexpr int64_t kPieceBytes = 1 << 20;

}  // namespace

// Every all_gather compares the ranks' calls by the record in `context`, which is that of the scan;
// there is one also where there are no elements.
absl::Status TypedBackend::ReducePrefix(const Tensor& tensor, ReduceOp op, int count,
                                        const CallContext& context) {
  const DType dtype = tensor.dtype();
  const int64_t item = static_cast<int64_t>(SizeOf(dtype));
  const int64_t piece = std::min(std::max<int64_t>(kPieceBytes / item, 1), tensor.numel());
  // Not initialized: all_gather writes every element that is read.
  const int64_t bytes = piece * size_ * item;
  const std::unique_ptr<char[]> memory(new (std::nothrow) char[bytes]);
  if (memory == nullptr) {
    return BackendError(
        absl::StrCat("out of memory: no ", bytes, " bytes for all ranks' elements"));
  }
  const Tensor gathered(memory.get(), dtype, {piece * size_});
  int64_t begin = 0;
  do {
    const int64_t elements = std::min(piece, tensor.numel() - begin);
    const Tensor part(tensor.data_as<char>() + begin * item, dtype, {elements});
    std::vector<Tensor> parts;
    std::vector<const void*> inputs;
    for (int r = 0; r < size_; ++r) {
      parts.push_back(gathered.Slice(r * piece, elements));
      if (r < count) inputs.push_back(parts[r].data());
    }
    SYNCLINE_RETURN_IF_ERROR(AllGather(parts, part, context));
    if (count > 0 && elements > 0) tensor::Reduce(dtype, op, part.data(), inputs, elements);
    begin += elements;
  } while (begin < tensor.numel());
  return absl::OkStatus();
}

absl::Status TypedBackend::Unsupported(OpKind kind) const {
  return UnsupportedError(absl::StrCat("backend ", name(), " does not serve ", Name(kind)));
}

absl::Status TypedBackend::Broadcast(const Tensor&, int, const CallContext&) {
  return Unsupported(OpKind::kBroadcast);
}
absl::Status TypedBackend::AllReduce(const Tensor&, ReduceOp, const CallContext&) {
  return Unsupported(OpKind::kAllReduce);
}
absl::Status TypedBackend::Reduce(const Tensor&, ReduceOp, int, const CallContext&) {
  return Unsupported(OpKind::kReduce);
}
absl::Status TypedBackend::AllGather(absl::Span<const Tensor>, const Tensor&, const CallContext&) {
  return Unsupported(OpKind::kAllGather);
}
absl::Status TypedBackend::Gather(absl::Span<const Tensor>, const Tensor&, int,
                                  const CallContext&) {
  return Unsupported(OpKind::kGather);
}
absl::Status TypedBackend::Scatter(const Tensor&, absl::Span<const Tensor>, int,
                                   const CallContext&) {
  return Unsupported(OpKind::kScatter);
}
absl::Status TypedBackend::ReduceScatter(const Tensor&, absl::Span<const Tensor>, ReduceOp,
                                         const CallContext&) {
  return Unsupported(OpKind::kReduceScatter);
}
absl::Status TypedBackend::Scan(const Tensor& tensor, ReduceOp op, const CallContext& context) {
  return ReducePrefix(tensor, op, rank() + 1, context);
}
absl::Status TypedBackend::Exscan(const Tensor& tensor, ReduceOp op, const CallContext& context) {
  return ReducePrefix(tensor, op, rank(), context);
}
absl::Status TypedBackend::AllToAll(absl::Span<const Tensor>, absl::Span<const Tensor>,
                                    const CallContext&) {
  return Unsupported(OpKind::kAllToAll);
}
absl::Status TypedBackend::Barrier(const CallContext&) { return Unsupported(OpKind::kBarrier); }
absl::Status TypedBackend::Send(const Tensor&, int, const CallContext&) {
  return Unsupported(OpKind::kSend);
}
absl::StatusOr<int> TypedBackend::Recv(const Tensor&, int, const CallContext&) {
  return Unsupported(OpKind::kRecv);
}

}  // namespace syncline::backends
