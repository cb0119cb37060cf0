#include "tests/backends/shared_calls.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "syncline/reduce_op.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"

namespace syncline {

const std::vector<OpKind>& SharedCalls() {
  static const auto* const kinds = new std::vector<OpKind>{
      OpKind::kBroadcast, OpKind::kAllReduce, OpKind::kReduce,        OpKind::kAllGather,
      OpKind::kGather,    OpKind::kScatter,   OpKind::kReduceScatter, OpKind::kAllToAll};
  return *kinds;
}

SharedBuffers::SharedBuffers(int ranks, int64_t part)
    : own(EmptyShared(DType::kUInt8, {part * ranks}).value()),
      result(EmptyShared(DType::kUInt8, {part * ranks}).value()) {
  for (int r = 0; r < ranks; ++r) {
    inputs.push_back(own.Slice(r * part, part));
    outputs.push_back(result.Slice(r * part, part));
  }
}

void SharedBuffers::Fill(uint8_t value) const { std::memset(own.data(), value, own.nbytes()); }

absl::Status RunShared(OpKind kind, const SharedBuffers& buffers, int root, Backend& backend,
                       const CallContext& context) {
  switch (kind) {
    case OpKind::kBroadcast:
      return RunAndWait(backend, Collective::Broadcast(buffers.own, root), context).status();
    case OpKind::kAllReduce:
      return RunAndWait(backend, Collective::AllReduce(buffers.own, ReduceOp::kMax), context)
          .status();
    case OpKind::kReduce:
      return RunAndWait(backend, Collective::Reduce(buffers.own, ReduceOp::kMax, root), context)
          .status();
    case OpKind::kAllGather:
      return RunAndWait(backend, Collective::AllGather(buffers.outputs, buffers.inputs[0]), context)
          .status();
    case OpKind::kGather:
      return RunAndWait(backend, Collective::Gather(buffers.outputs, buffers.inputs[0], root),
                        context)
          .status();
    case OpKind::kScatter:
      return RunAndWait(backend, Collective::Scatter(buffers.outputs[0], buffers.inputs, root),
                        context)
          .status();
    case OpKind::kReduceScatter:
      return RunAndWait(
                 backend,
                 Collective::ReduceScatter(buffers.outputs[0], buffers.inputs, ReduceOp::kMax),
                 context)
          .status();
    case OpKind::kAllToAll:
      return RunAndWait(backend, Collective::AllToAll(buffers.outputs, buffers.inputs), context)
          .status();
    default:
      return absl::InternalError("no such case");
  }
}

Tensor GotFrom(OpKind kind, const SharedBuffers& buffers, int from) {
  switch (kind) {
    case OpKind::kBroadcast:
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      return buffers.own;
    case OpKind::kScatter:
    case OpKind::kReduceScatter:
      return buffers.outputs[0];
    default:
      return buffers.outputs[from];
  }
}

absl::Status CheckShared(OpKind kind, const SharedBuffers& buffers, int root, int rank,
                         absl::Span<const uint8_t> values) {
  const uint8_t most = *std::max_element(values.begin(), values.end());
  switch (kind) {
    case OpKind::kBroadcast:
      return CheckAll(buffers.own, values[root]);
    case OpKind::kAllReduce:
      return CheckAll(buffers.own, most);
    case OpKind::kReduce:
      return rank == root ? CheckAll(buffers.own, most) : absl::OkStatus();
    case OpKind::kScatter:
      return CheckAll(buffers.outputs[0], values[root]);
    case OpKind::kReduceScatter:
      return CheckAll(buffers.outputs[0], most);
    default:
      if (kind == OpKind::kGather && rank != root) return absl::OkStatus();
      for (size_t r = 0; r < values.size(); ++r) {
        SYNCLINE_RETURN_IF_ERROR(Annotate(CheckAll(buffers.outputs[r], values[r]),
                                          absl::StrCat("what rank ", r, " brought")));
      }
      return absl::OkStatus();
  }
}

absl::Status CheckAll(const Tensor& tensor, uint8_t value) {
  const auto* const begin = tensor.data_as<uint8_t>();
  const auto* const end = begin + tensor.numel();
  const auto* const wrong = std::find_if(begin, end, [=](uint8_t it) { return it != value; });
  if (wrong == end) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("byte ", wrong - begin, " of ", tensor.numel(), " is ",
                                          static_cast<int>(*wrong), ", not ",
                                          static_cast<int>(value)));
}

}  // namespace syncline
