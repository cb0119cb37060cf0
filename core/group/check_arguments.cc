#include "core/group/check_arguments.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/tensor/tensor_checks.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

// What the arguments must fit: the backend and the ranks of one group.
struct Limits {
  const Capabilities& capabilities;
  absl::string_view backend;
  int rank;
  int size;
};

// Whether CheckTensor would be OK.
bool IsAcceptable(const Tensor& tensor, Access needed, const Capabilities& capabilities) {
  return tensor.is_contiguous() && capabilities.devices.count(tensor.device().type) != 0 &&
         (needed == Access::kReadOnly || tensor.access() == Access::kReadWrite);
}

bool IsRank(int rank, int size) { return rank >= 0 && rank < size; }

absl::Status CheckRank(int rank, int size, absl::string_view what) {
  if (IsRank(rank, size)) return absl::OkStatus();
  return ArgumentError(
      absl::StrCat(what, " must be a rank of the group, 0 to ", size - 1, ", not ", rank));
}

absl::Status CheckPeers(const Collective& op, const Limits& limits) {
  if (HasRoot(op.kind)) return CheckRank(op.peer, limits.size, "the root");
  if (!IsP2p(op.kind)) return absl::OkStatus();
  const bool sends = op.kind == OpKind::kSend;
  if (sends || op.peer != kAnySource) {
    SYNCLINE_RETURN_IF_ERROR(CheckRank(op.peer, limits.size, sends ? "dst" : "src"));
  }
  if (op.peer == limits.rank || limits.size == 1) {
    return ArgumentError(absl::StrCat("rank ", limits.rank, " cannot ", Name(op.kind),
                                      sends ? " to" : " from", " itself"));
  }
  if (op.tag >= 0 && op.tag <= INT32_MAX) return absl::OkStatus();
  return ArgumentError(absl::StrCat("tag must be in 0 to ", INT32_MAX, ", not ", op.tag));
}

absl::Status CheckTensor(const Tensor& tensor, Access needed, absl::string_view what,
                         const Limits& limits) {
  if (IsAcceptable(tensor, needed, limits.capabilities)) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(tensor::CheckContiguous(tensor, what));
  if (limits.capabilities.devices.count(tensor.device().type) == 0) {
    return ArgumentError(absl::StrCat(what, " is on ", ToString(tensor.device()),
                                      ", where backend ", limits.backend,
                                      " does not work: move it, or choose another "
                                      "backend"));
  }
  return needed == Access::kReadWrite ? tensor::CheckWritable(tensor, what) : absl::OkStatus();
}

// All tensors of a call on a device are on the same one.
absl::Status CheckOneDevice(const Collective& op) {
  const Device device = op.tensor_device();
  for (const auto list : {op.outputs, op.inputs}) {
    for (size_t r = 0; r < list.size(); ++r) {
      if (list[r].device() == device) continue;
      return ArgumentError(absl::StrCat(list.data() == op.outputs.data() ? "outputs[" : "inputs[",
                                        r, "] is on ", ToString(list[r].device()),
                                        " and another tensor of the call on ", ToString(device),
                                        ": one device is needed"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckServed(const Collective& op, const Limits& limits) {
  if (limits.capabilities.ops.count(op.kind) == 0) {
    return UnsupportedError(
        absl::StrCat("backend ", limits.backend, " does not serve ", Name(op.kind)));
  }
  if (op.kind == OpKind::kBarrier) return absl::OkStatus();
  const DType dtype = op.dtype();
  if (Reduces(op.kind)) {
    const bool is_prefix = op.kind == OpKind::kScan || op.kind == OpKind::kExscan;
    if (is_prefix && op.reduce_op == ReduceOp::kAvg) {
      return ArgumentError(absl::StrCat(Name(op.kind), " of ", Name(dtype),
                                        " takes no avg, as each rank's result comes ",
                                        "from another number of ranks: use sum, and divide"));
    }
    SYNCLINE_RETURN_IF_ERROR(CheckReduction(dtype, op.reduce_op));
    if (op.factor != 1.0 && op.reduce_op != ReduceOp::kPremulSum) {
      return ArgumentError(absl::StrCat("a factor goes with premul_sum only, not with ",
                                        Name(op.reduce_op), ": got ", op.factor));
    }
    if (limits.capabilities.reduce_dtypes.count(dtype) != 0) return absl::OkStatus();
  } else if (limits.capabilities.move_dtypes.count(dtype) != 0) {
    return absl::OkStatus();
  }
  return UnsupportedError(absl::StrCat("backend ", limits.backend, " does not serve ",
                                       Name(op.kind), " of ", Name(dtype)));
}

// A list with one tensor for each rank, of `dtype`, where this rank has one.
absl::Status CheckList(absl::Span<const Tensor> list, absl::string_view what, Access needed,
                       DType dtype, const Limits& limits) {
  if (list.size() != static_cast<size_t>(limits.size)) {
    return ArgumentError(absl::StrCat(what, " must have one tensor for each of the ", limits.size,
                                      " ranks, not ", list.size()));
  }
  for (size_t r = 0; r < list.size(); ++r) {
    if (IsAcceptable(list[r], needed, limits.capabilities) && list[r].dtype() == dtype) continue;
    const std::string item = absl::StrCat(what, "[", r, "]");
    SYNCLINE_RETURN_IF_ERROR(CheckTensor(list[r], needed, item, limits));
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

absl::Status CheckGatherings(const Collective& op, const Limits& limits) {
  if (op.kind == OpKind::kGather && op.peer != limits.rank) {
    if (op.outputs.empty()) return absl::OkStatus();
    return ArgumentError(absl::StrCat("outputs are for the root, rank ", op.peer, ", only; rank ",
                                      limits.rank, " must pass none"));
  }
  SYNCLINE_RETURN_IF_ERROR(
      CheckList(op.outputs, "outputs", Access::kReadWrite, op.tensor->dtype(), limits));
  for (int r = 0; r < limits.size; ++r) {
    if (op.kind == OpKind::kAllGather && r != limits.rank) continue;  // May differ.
    SYNCLINE_RETURN_IF_ERROR(CheckEqualSizes(op.outputs, "outputs", r, *op.tensor, "the input"));
  }
  const size_t own = static_cast<size_t>(limits.rank);
  return tensor::CheckApart(op.outputs, absl::MakeSpan(op.tensor, 1),
                            [own](size_t) { return own; });
}

absl::Status CheckScatterings(const Collective& op, const Limits& limits) {
  if (op.kind == OpKind::kScatter && op.peer != limits.rank) {
    if (op.inputs.empty()) return absl::OkStatus();
    return ArgumentError(absl::StrCat("inputs are for the root, rank ", op.peer, ", only; rank ",
                                      limits.rank, " must pass none"));
  }
  SYNCLINE_RETURN_IF_ERROR(
      CheckList(op.inputs, "inputs", Access::kReadOnly, op.tensor->dtype(), limits));
  for (int r = 0; r < limits.size; ++r) {
    if (op.kind == OpKind::kReduceScatter && r != limits.rank) continue;  // May differ.
    SYNCLINE_RETURN_IF_ERROR(CheckEqualSizes(op.inputs, "inputs", r, *op.tensor, "the output"));
  }
  const size_t own = static_cast<size_t>(limits.rank);
  return tensor::CheckApart(absl::MakeSpan(op.tensor, 1), op.inputs,
                            [own](size_t i) { return i == own ? 0 : tensor::kNoTwin; });
}

absl::Status CheckAllToAll(const Collective& op, const Limits& limits) {
  SYNCLINE_RETURN_IF_ERROR(CheckList(op.inputs, "inputs", Access::kReadOnly, op.dtype(), limits));
  SYNCLINE_RETURN_IF_ERROR(
      CheckList(op.outputs, "outputs", Access::kReadWrite, op.dtype(), limits));
  const Tensor& own = op.inputs[limits.rank];
  if (own.numel() != op.outputs[limits.rank].numel()) {
    return CheckEqualSizes(op.outputs, "outputs", limits.rank, own,
                           absl::StrCat("inputs[", limits.rank, "]"));
  }
  return tensor::CheckApart(op.outputs, op.inputs);
}

}  // namespace

bool WritesTensor(const Collective& collective, int rank) {
  switch (collective.kind) {
    case OpKind::kAllReduce:
    case OpKind::kScatter:
    case OpKind::kReduceScatter:
    case OpKind::kScan:
    case OpKind::kRecv:
      return true;
    case OpKind::kExscan:
      return rank != 0;
    case OpKind::kBroadcast:
      return collective.peer != rank;
    case OpKind::kReduce:
      return collective.peer == rank;
    default:
      return false;
  }
}

namespace {

// The memory of a list of tensors.
struct Extent {
  const char* begin;
  const char* end;
};

bool AreApart(const Extent& a, const Extent& b) { return a.end <= b.begin || b.end <= a.begin; }

Extent ExtentOf(const Tensor& tensor) {
  const char* const begin = tensor.data_as<char>();
  return {begin, begin + tensor.nbytes()};
}

// `model` is on the CPU, contiguous, and may be written.
bool IsLike(const Tensor& tensor, const Tensor& model) {
  return tensor.numel() == model.numel() && tensor.dtype() == model.dtype() &&
         tensor.device().type == DeviceType::kCpu && tensor.is_contiguous() &&
         tensor.access() == Access::kReadWrite;
}

// Whether a list of `collective` has a tensor like `model` for each rank, and CheckList finds
// nothing wrong with them. Requires that IsAcceptable is true of `model`, which is on the CPU and
// may be written. If so sets `extent`, of the whole list.
bool IsPlainList(const Collective& collective, absl::Span<const Tensor> list, const Tensor& model,
                 const Limits& limits, Extent& extent) {
  constexpr size_t kMaxCompared = 64;
  if (list.size() != static_cast<size_t>(limits.size) || model.numel() == 0) return false;
  const size_t bytes = model.nbytes();
  extent = {list[0].data_as<char>(), list[0].data_as<char>()};
  if (collective.has_equal_parts) {
    extent.end += list.size() * bytes;
    return list[0].data() != nullptr && IsLike(list[0], model);
  }
  for (size_t r = 0; r < list.size(); ++r) {
    const Tensor& tensor = list[r];
    const char* const begin = tensor.data_as<char>();
    if (!IsLike(tensor, model)) return false;
    if (begin >= extent.end) {
      extent.end = begin + bytes;
    } else if (begin + bytes <= extent.begin) {
      extent.begin = begin;
    } else {
      // Between others. Of very many, the check in full is the faster one.
      const auto is_apart = [&](const Tensor& other) {
        return AreApart(ExtentOf(other), ExtentOf(tensor));
      };
      if (r >= kMaxCompared || !absl::c_all_of(list.subspan(0, r), is_apart)) return false;
    }
  }
  return true;
}

// Whether nothing is wrong with the list of a call of which each rank has a part, if it has one,
// and whose tensor IsPlainTensor. Not inlined, nor is the next: most calls have no list.
ABSL_ATTRIBUTE_NOINLINE bool HasPlainListOfParts(const Collective& collective,
                                                 const Capabilities& capabilities, int rank,
                                                 int size) {
  const Limits limits = {capabilities, {}, rank, size};
  const Tensor& tensor = *collective.tensor;
  absl::Span<const Tensor> list;
  switch (collective.kind) {
    case OpKind::kAllGather:
      list = collective.outputs;
      break;
    case OpKind::kReduceScatter:
      list = collective.inputs;
      break;
    case OpKind::kGather:
    case OpKind::kScatter:
      list = collective.kind == OpKind::kGather ? collective.outputs : collective.inputs;
      if (collective.peer != limits.rank) return list.empty();
      break;
    default:  // HasListOfParts is false of these.
      return true;
  }
  Extent whole;
  if (!IsPlainList(collective, list, tensor, limits, whole)) return false;
  const Extent extent = ExtentOf(tensor);
  return tensor.data() == list[rank].data() || AreApart(whole, extent) ||
         absl::c_all_of(list, [&](const Tensor& part) { return AreApart(ExtentOf(part), extent); });
}

ABSL_ATTRIBUTE_NOINLINE bool HasPlainLists(const Collective& collective,
                                           const Capabilities& capabilities, int rank, int size) {
  const Limits limits = {capabilities, {}, rank, size};
  if (collective.inputs.empty()) return false;
  const Tensor& model = collective.inputs[0];
  Extent inputs, outputs;
  return model.device().type == DeviceType::kCpu &&
         IsAcceptable(model, Access::kReadWrite, capabilities) &&
         IsPlainList(collective, collective.inputs, model, limits, inputs) &&
         IsPlainList(collective, collective.outputs, model, limits, outputs) &&
         AreApart(inputs, outputs);
}

// Whether nothing is wrong with the tensor of a call. Almost all tensors may be written, so this
// need not ask which calls do.
bool IsPlainTensor(const Tensor& tensor, const Capabilities& capabilities) {
  return tensor.device().type == DeviceType::kCpu &&
         IsAcceptable(tensor, Access::kReadWrite, capabilities);
}

constexpr bool HasListOfParts(OpKind kind) {
  constexpr EnumSet<OpKind> kKinds = {OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kGather,
                                      OpKind::kScatter};
  return kKinds.count(kind) != 0;
}

}  // namespace

bool IsPlain(const Collective& collective, const Capabilities& capabilities, int rank, int size) {
  const OpKind kind = collective.kind;
  if (capabilities.ops.count(kind) == 0) return false;
  if (HasRoot(kind)) {
    if (!IsRank(collective.peer, size)) return false;
  } else if (kind == OpKind::kBarrier) {
    return true;
  } else if (IsP2p(kind)) {
    const bool takes_any = kind == OpKind::kRecv && collective.peer == kAnySource;
    if (!takes_any && !IsRank(collective.peer, size)) return false;
    if (collective.peer == rank || size == 1) return false;
    if (collective.tag < 0 || collective.tag > INT32_MAX) return false;
  }
  if (kind == OpKind::kAllToAll) {
    if (!HasPlainLists(collective, capabilities, rank, size)) return false;
  } else {
    if (!IsPlainTensor(*collective.tensor, capabilities)) return false;
    if (HasListOfParts(kind) && !HasPlainListOfParts(collective, capabilities, rank, size)) {
      return false;
    }
  }
  const DType dtype = collective.dtype();
  if (!Reduces(kind)) return capabilities.move_dtypes.count(dtype) != 0;
  const bool adds = collective.reduce_op == ReduceOp::kSum;
  return adds && collective.factor == 1.0 && capabilities.reduce_dtypes.count(dtype) != 0;
}

absl::Status CheckArguments(const Collective& collective, const Capabilities& capabilities,
                            absl::string_view backend, int rank, int size) {
  const Limits limits = {capabilities, backend, rank, size};
  SYNCLINE_RETURN_IF_ERROR(CheckPeers(collective, limits));
  SYNCLINE_RETURN_IF_ERROR(CheckOneDevice(collective));
  if (collective.kind != OpKind::kBarrier && collective.kind != OpKind::kAllToAll) {
    const Access needed = WritesTensor(collective, rank) ? Access::kReadWrite : Access::kReadOnly;
    SYNCLINE_RETURN_IF_ERROR(CheckTensor(*collective.tensor, needed, "the tensor", limits));
  }
  switch (collective.kind) {
    case OpKind::kAllGather:
    case OpKind::kGather:
      SYNCLINE_RETURN_IF_ERROR(CheckGatherings(collective, limits));
      break;
    case OpKind::kScatter:
    case OpKind::kReduceScatter:
      SYNCLINE_RETURN_IF_ERROR(CheckScatterings(collective, limits));
      break;
    case OpKind::kAllToAll:
      SYNCLINE_RETURN_IF_ERROR(CheckAllToAll(collective, limits));
      break;
    default:
      break;
  }
  return CheckServed(collective, limits);
}

}  // namespace syncline::group
