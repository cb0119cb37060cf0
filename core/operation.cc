#include "core/operation.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace syncline {
namespace {

absl::Status CheckRank(int64_t rank, int size, absl::string_view what) {
  if (rank >= 0 && rank < size) return absl::OkStatus();
  return ArgumentError(
      absl::StrCat(what, " must be a rank of the group, 0 to ", size - 1, ", not ", rank));
}

absl::Status CheckTensor(const Tensor& tensor, Access needed, absl::string_view what,
                         const Backend& backend) {
  if (!tensor.is_contiguous()) {
    return ArgumentError(absl::StrCat(what, " is not contiguous (", tensor.ToString(),
                                      "): pass a contiguous copy, such as "
                                      "numpy.ascontiguousarray(x) or x.contiguous()"));
  }
  if (backend.capabilities().devices.count(tensor.device().type) == 0) {
    return ArgumentError(absl::StrCat(what, " is on ", ToString(tensor.device()),
                                      ", where backend ", backend.name(),
                                      " does not work: move it, or choose another "
                                      "backend"));
  }
  if (needed == Access::kReadWrite && tensor.access() == Access::kReadOnly) {
    return TypeError(absl::StrCat(what, " is read-only (", tensor.ToString(),
                                  ") but would be written: pass a writable copy"));
  }
  return absl::OkStatus();
}

absl::Status CheckServed(const Operation& operation, const Backend& backend) {
  const Capabilities& capabilities = backend.capabilities();
  if (capabilities.ops.count(operation.kind) == 0) {
    return UnsupportedError(
        absl::StrCat("backend ", backend.name(), " does not serve ", Name(operation.kind)));
  }
  if (operation.kind == OpKind::kBarrier) return absl::OkStatus();
  const DType dtype = operation.tensor.dtype();
  if (operation.kind == OpKind::kAllReduce) {
    SYNCLINE_RETURN_IF_ERROR(CheckReduction(dtype, operation.reduce_op));
    if (capabilities.reduce_dtypes.count(dtype) != 0) return absl::OkStatus();
  } else if (capabilities.move_dtypes.count(dtype) != 0) {
    return absl::OkStatus();
  }
  return UnsupportedError(absl::StrCat("backend ", backend.name(), " does not serve ",
                                       Name(operation.kind), " of ", Name(dtype)));
}

bool Overlap(const Tensor& a, const Tensor& b) {
  const auto* a_begin = static_cast<const std::byte*>(a.data());
  const auto* b_begin = static_cast<const std::byte*>(b.data());
  return a.nbytes() > 0 && b.nbytes() > 0 && a_begin < b_begin + b.nbytes() &&
         b_begin < a_begin + a.nbytes();
}

absl::Status CheckApart(const Operation& gather, int rank) {
  std::vector<const Tensor*> sorted;
  for (const Tensor& output : gather.outputs) sorted.push_back(&output);
  std::sort(sorted.begin(), sorted.end(),
            [](const Tensor* a, const Tensor* b) { return a->data() < b->data(); });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (Overlap(*sorted[i - 1], *sorted[i])) {
      return ArgumentError("two of the outputs share memory: give each rank its own");
    }
  }
  for (size_t r = 0; r < gather.outputs.size(); ++r) {
    const Tensor& output = gather.outputs[r];
    const bool own = r == static_cast<size_t>(rank) && output.data() == gather.tensor.data();
    if (!own && Overlap(output, gather.tensor)) {
      return ArgumentError(absl::StrCat("the input shares memory with outputs[", r,
                                        "]: only outputs[own rank] may be the input itself"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGather(const Operation& gather, const Backend& backend, int rank, int size) {
  if (gather.outputs.size() != static_cast<size_t>(size)) {
    return ArgumentError(absl::StrCat("all_gather needs one output for each of the ", size,
                                      " ranks, not ", gather.outputs.size()));
  }
  for (size_t r = 0; r < gather.outputs.size(); ++r) {
    const Tensor& output = gather.outputs[r];
    const std::string what = absl::StrCat("outputs[", r, "]");
    SYNCLINE_RETURN_IF_ERROR(CheckTensor(output, Access::kReadWrite, what, backend));
    if (output.dtype() != gather.tensor.dtype()) {
      return TypeError(absl::StrCat(what, " is ", output.ToString(), " but the input is ",
                                    gather.tensor.ToString(), ": their types must be equal"));
    }
    if (output.numel() != gather.tensor.numel()) {
      return ArgumentError(absl::StrCat(what, " is ", output.ToString(), " but the input is ",
                                        gather.tensor.ToString(), ": their sizes must be equal"));
    }
  }
  return CheckApart(gather, rank);
}

bool WritesTensor(const Operation& operation, int rank) {
  switch (operation.kind) {
    case OpKind::kAllReduce:
    case OpKind::kRecv:
      return true;
    case OpKind::kBroadcast:
      return operation.peer != rank;
    default:
      return false;
  }
}

}  // namespace

std::string Operation::ToString(uint64_t sequence) const {
  std::string details;
  if (kind != OpKind::kBarrier) details = tensor.ToString();
  if (kind == OpKind::kAllReduce) absl::StrAppend(&details, ", ", Name(reduce_op));
  if (kind == OpKind::kBroadcast) absl::StrAppend(&details, ", root ", peer);
  if (kind == OpKind::kSend) absl::StrAppend(&details, ", to rank ", peer, ", tag ", tag);
  if (kind == OpKind::kRecv) absl::StrAppend(&details, ", from rank ", peer, ", tag ", tag);
  if (!details.empty()) details = absl::StrCat(" (", details, ")");
  return absl::StrCat(Name(kind), " #", sequence, details);
}

absl::Status Validate(const Operation& operation, const Backend& backend, int rank, int size) {
  if (operation.kind == OpKind::kBroadcast) {
    SYNCLINE_RETURN_IF_ERROR(CheckRank(operation.peer, size, "the root"));
  }
  if (operation.is_p2p()) {
    const bool sends = operation.kind == OpKind::kSend;
    SYNCLINE_RETURN_IF_ERROR(CheckRank(operation.peer, size, sends ? "dst" : "src"));
    if (operation.peer == rank) {
      return ArgumentError(absl::StrCat("rank ", rank, " cannot ", Name(operation.kind),
                                        sends ? " to" : " from", " itself"));
    }
    if (operation.tag < 0 || operation.tag > INT32_MAX) {
      return ArgumentError(
          absl::StrCat("tag must be in 0 to ", INT32_MAX, ", not ", operation.tag));
    }
  }
  if (operation.kind != OpKind::kBarrier) {
    const Access needed = WritesTensor(operation, rank) ? Access::kReadWrite : Access::kReadOnly;
    SYNCLINE_RETURN_IF_ERROR(CheckTensor(operation.tensor, needed, "the tensor", backend));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckServed(operation, backend));
  if (operation.kind == OpKind::kAllGather) return CheckGather(operation, backend, rank, size);
  return absl::OkStatus();
}

absl::Status Dispatch(const Operation& operation, const CallContext& context, Backend& backend) {
  switch (operation.kind) {
    case OpKind::kBroadcast:
      return backend.Broadcast(operation.tensor, static_cast<int>(operation.peer), context);
    case OpKind::kAllReduce:
      return backend.AllReduce(operation.tensor, operation.reduce_op, context);
    case OpKind::kAllGather:
      return backend.AllGather(operation.outputs, operation.tensor, context);
    case OpKind::kBarrier:
      return backend.Barrier(context);
    case OpKind::kSend:
      return backend.Send(operation.tensor, static_cast<int>(operation.peer), context);
    case OpKind::kRecv:
      return backend.Recv(operation.tensor, static_cast<int>(operation.peer), context);
  }
  return absl::InternalError("unknown operation");
}

}  // namespace syncline
