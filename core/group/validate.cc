#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/status.h"
#include "core/group/operation.h"
#include "core/tensor/tensor_checks.h"

namespace syncline {
namespace {

// What is checked against: one rank of one group.
struct Place {
  const Capabilities& capabilities;
  absl::string_view backend;
  int rank;
  int size;
};

// Whether CheckTensor would be OK.
bool IsAcceptable(const Tensor& tensor, Access needed, const Place& place) {
  return tensor.is_contiguous() && place.capabilities.devices.count(tensor.device().type) != 0 &&
         (needed == Access::kReadOnly || tensor.access() == Access::kReadWrite);
}

bool HasRoot(OpKind kind) {
  return kind == OpKind::kBroadcast || kind == OpKind::kReduce || kind == OpKind::kGather ||
         kind == OpKind::kScatter;
}

absl::Status CheckRank(int64_t rank, int size, absl::string_view what) {
  if (rank >= 0 && rank < size) return absl::OkStatus();
  return ArgumentError(
      absl::StrCat(what, " must be a rank of the group, 0 to ", size - 1, ", not ", rank));
}

absl::Status CheckPeers(const Operation& op, const Place& place) {
  if (HasRoot(op.kind)) return CheckRank(op.peer, place.size, "the root");
  if (!IsP2p(op.kind)) return absl::OkStatus();
  const bool sends = op.kind == OpKind::kSend;
  if (sends || op.peer != kAnySource) {
    SYNCLINE_RETURN_IF_ERROR(CheckRank(op.peer, place.size, sends ? "dst" : "src"));
  }
  if (op.peer == place.rank || place.size == 1) {
    return ArgumentError(absl::StrCat("rank ", place.rank, " cannot ", Name(op.kind),
                                      sends ? " to" : " from", " itself"));
  }
  if (op.tag >= 0 && op.tag <= INT32_MAX) return absl::OkStatus();
  return ArgumentError(absl::StrCat("tag must be in 0 to ", INT32_MAX, ", not ", op.tag));
}

absl::Status CheckTensor(const Tensor& tensor, Access needed, absl::string_view what,
                         const Place& place) {
  if (IsAcceptable(tensor, needed, place)) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(CheckContiguous(tensor, what));
  if (place.capabilities.devices.count(tensor.device().type) == 0) {
    return ArgumentError(absl::StrCat(what, " is on ", ToString(tensor.device()),
                                      ", where backend ", place.backend,
                                      " does not work: move it, or choose another "
                                      "backend"));
  }
  return needed == Access::kReadWrite ? CheckWritable(tensor, what) : absl::OkStatus();
}

bool WritesTensor(const Operation& op, int rank) {
  switch (op.kind) {
    case OpKind::kAllReduce:
    case OpKind::kScatter:
    case OpKind::kReduceScatter:
    case OpKind::kRecv:
      return true;
    case OpKind::kBroadcast:
      return op.peer != rank;
    case OpKind::kReduce:
      return op.peer == rank;
    default:
      return false;
  }
}

absl::Status CheckServed(const Operation& op, const Place& place) {
  if (place.capabilities.ops.count(op.kind) == 0) {
    return UnsupportedError(
        absl::StrCat("backend ", place.backend, " does not serve ", Name(op.kind)));
  }
  if (op.kind == OpKind::kBarrier) return absl::OkStatus();
  const DType dtype = op.dtype();
  if (Reduces(op.kind)) {
    SYNCLINE_RETURN_IF_ERROR(CheckReduction(dtype, op.reduce_op));
    if (op.factor != 1.0 && op.reduce_op != ReduceOp::kPremulSum) {
      return ArgumentError(absl::StrCat("a factor goes with premul_sum only, not with ",
                                        Name(op.reduce_op), ": got ", op.factor));
    }
    if (place.capabilities.reduce_dtypes.count(dtype) != 0) return absl::OkStatus();
  } else if (place.capabilities.move_dtypes.count(dtype) != 0) {
    return absl::OkStatus();
  }
  return UnsupportedError(absl::StrCat("backend ", place.backend, " does not serve ", Name(op.kind),
                                       " of ", Name(dtype)));
}

// A list with one tensor for each rank, of `dtype`, where this rank has one.
absl::Status CheckList(absl::Span<const Tensor> list, absl::string_view what, Access needed,
                       DType dtype, const Place& place) {
  if (list.size() != static_cast<size_t>(place.size)) {
    return ArgumentError(absl::StrCat(what, " must have one tensor for each of the ", place.size,
                                      " ranks, not ", list.size()));
  }
  for (size_t r = 0; r < list.size(); ++r) {
    if (IsAcceptable(list[r], needed, place) && list[r].dtype() == dtype) continue;
    const std::string item = absl::StrCat(what, "[", r, "]");
    SYNCLINE_RETURN_IF_ERROR(CheckTensor(list[r], needed, item, place));
    if (list[r].dtype() != dtype) {
      return TypeError(absl::StrCat(item, " is ", list[r].ToString(), " where ", Name(dtype),
                                    " is expected: all tensors must have one type"));
    }
  }
  return absl::OkStatus();
}

// list[r] and `b`.
absl::Status CheckEqualSizes(absl::Span<const Tensor> list, absl::string_view list_name, int r,
                             const Tensor& b, absl::string_view b_name) {
  if (list[r].numel() == b.numel()) return absl::OkStatus();
  return ArgumentError(absl::StrCat(list_name, "[", r, "] is ", list[r].ToString(), " but ", b_name,
                                    " is ", b.ToString(), ": their sizes must be equal"));
}

absl::Status CheckGatherings(const Operation& op, const Place& place) {
  if (op.kind == OpKind::kGather && op.peer != place.rank) {
    if (op.outputs.empty()) return absl::OkStatus();
    return ArgumentError(absl::StrCat("outputs are for the root, rank ", op.peer, ", only; rank ",
                                      place.rank, " must pass none"));
  }
  SYNCLINE_RETURN_IF_ERROR(
      CheckList(op.outputs, "outputs", Access::kReadWrite, op.tensor->dtype(), place));
  for (int r = 0; r < place.size; ++r) {
    if (op.kind == OpKind::kAllGather && r != place.rank) continue;  // May differ.
    SYNCLINE_RETURN_IF_ERROR(CheckEqualSizes(op.outputs, "outputs", r, *op.tensor, "the input"));
  }
  const size_t own = static_cast<size_t>(place.rank);
  return CheckApart(op.outputs, absl::MakeSpan(op.tensor, 1), [own](size_t) { return own; });
}

absl::Status CheckScatterings(const Operation& op, const Place& place) {
  if (op.kind == OpKind::kScatter && op.peer != place.rank) {
    if (op.inputs.empty()) return absl::OkStatus();
    return ArgumentError(absl::StrCat("inputs are for the root, rank ", op.peer, ", only; rank ",
                                      place.rank, " must pass none"));
  }
  SYNCLINE_RETURN_IF_ERROR(
      CheckList(op.inputs, "inputs", Access::kReadOnly, op.tensor->dtype(), place));
  for (int r = 0; r < place.size; ++r) {
    if (op.kind == OpKind::kReduceScatter && r != place.rank) continue;  // May differ.
    SYNCLINE_RETURN_IF_ERROR(CheckEqualSizes(op.inputs, "inputs", r, *op.tensor, "the output"));
  }
  const size_t own = static_cast<size_t>(place.rank);
  return CheckApart(absl::MakeSpan(op.tensor, 1), op.inputs,
                    [own](size_t i) { return i == own ? 0 : kNoTwin; });
}

absl::Status CheckAllToAll(const Operation& op, const Place& place) {
  SYNCLINE_RETURN_IF_ERROR(CheckList(op.inputs, "inputs", Access::kReadOnly, op.dtype(), place));
  SYNCLINE_RETURN_IF_ERROR(CheckList(op.outputs, "outputs", Access::kReadWrite, op.dtype(), place));
  const Tensor& own = op.inputs[place.rank];
  if (own.numel() != op.outputs[place.rank].numel()) {
    return CheckEqualSizes(op.outputs, "outputs", place.rank, own,
                           absl::StrCat("inputs[", place.rank, "]"));
  }
  return CheckApart(op.outputs, op.inputs);
}

}  // namespace

absl::Status Validate(const Operation& operation, const Capabilities& capabilities,
                      absl::string_view backend, int rank, int size) {
  const Place place = {capabilities, backend, rank, size};
  SYNCLINE_RETURN_IF_ERROR(CheckPeers(operation, place));
  if (operation.kind != OpKind::kBarrier && operation.kind != OpKind::kAllToAll) {
    const Access needed = WritesTensor(operation, rank) ? Access::kReadWrite : Access::kReadOnly;
    SYNCLINE_RETURN_IF_ERROR(CheckTensor(*operation.tensor, needed, "the tensor", place));
  }
  switch (operation.kind) {
    case OpKind::kAllGather:
    case OpKind::kGather:
      SYNCLINE_RETURN_IF_ERROR(CheckGatherings(operation, place));
      break;
    case OpKind::kScatter:
    case OpKind::kReduceScatter:
      SYNCLINE_RETURN_IF_ERROR(CheckScatterings(operation, place));
      break;
    case OpKind::kAllToAll:
      SYNCLINE_RETURN_IF_ERROR(CheckAllToAll(operation, place));
      break;
    default:
      break;
  }
  return CheckServed(operation, place);
}

}  // namespace syncline
