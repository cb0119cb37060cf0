#include "core/group/operation.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/tensor/reduce_kernels.h"

namespace syncline {
namespace {

// Of a list, as many runs of equal tensors are shown, and then how many more there are.
constexpr size_t kShownRuns = 8;

// A copy of `tensor`, multiplied by `factor`.
absl::StatusOr<Tensor> Scaled(const Tensor& tensor, double factor) {
  SYNCLINE_ASSIGN_OR_RETURN(Tensor copy, Tensor::TryZeros(tensor.dtype(), tensor.shape()));
  if (tensor.nbytes() > 0) std::memcpy(copy.data(), tensor.data(), tensor.nbytes());
  Scale(copy.dtype(), copy.data(), factor, copy.numel());
  return copy;
}

absl::Status DispatchReduction(const Operation& op, const CallContext& context, Backend& backend) {
  switch (op.kind) {
    case OpKind::kAllReduce:
      return backend.AllReduce(*op.tensor, op.reduce_op, context);
    case OpKind::kReduce:
      return backend.Reduce(*op.tensor, op.reduce_op, static_cast<int>(op.peer), context);
    default:
      return backend.ReduceScatter(*op.tensor, op.inputs, op.reduce_op, context);
  }
}

// Multiplies copies, so that the user's tensors are as they were if the operation fails.
absl::Status DispatchPremultiplied(const Operation& op, const CallContext& context,
                                   Backend& backend, int rank) {
  Operation scaled = op;
  if (op.kind == OpKind::kReduceScatter) {
    std::vector<Tensor> inputs;
    for (const Tensor& input : op.inputs) {
      SYNCLINE_ASSIGN_OR_RETURN(inputs.emplace_back(), Scaled(input, op.factor));
    }
    scaled.HoldInputs(std::move(inputs));
    return DispatchReduction(scaled, context, backend);
  }
  SYNCLINE_ASSIGN_OR_RETURN(Tensor copy, Scaled(*op.tensor, op.factor));
  scaled.HoldTensor(std::move(copy));
  SYNCLINE_RETURN_IF_ERROR(DispatchReduction(scaled, context, backend));
  const bool has_result = op.kind == OpKind::kAllReduce || op.peer == rank;
  if (has_result && op.tensor->nbytes() > 0) {
    std::memcpy(op.tensor->data(), scaled.tensor->data(), op.tensor->nbytes());
  }
  return absl::OkStatus();
}

absl::Status DispatchCollective(const Operation& op, const CallContext& context, Backend& backend,
                                int rank) {
  const int root = static_cast<int>(op.peer);
  switch (op.kind) {
    case OpKind::kBroadcast:
      return backend.Broadcast(*op.tensor, root, context);
    case OpKind::kAllGather:
      return backend.AllGather(op.outputs, *op.tensor, context);
    case OpKind::kGather:
      return backend.Gather(op.outputs, *op.tensor, root, context);
    case OpKind::kScatter:
      return backend.Scatter(*op.tensor, op.inputs, root, context);
    case OpKind::kAllToAll:
      return backend.AllToAll(op.outputs, op.inputs, context);
    case OpKind::kBarrier:
      return backend.Barrier(context);
    default:
      break;
  }
  const bool premultiply = op.reduce_op == ReduceOp::kPremulSum && op.factor != 1.0;
  return premultiply ? DispatchPremultiplied(op, context, backend, rank)
                     : DispatchReduction(op, context, backend);
}

// FNV-1a, of whole numbers.
uint64_t Hash(uint64_t hash, uint64_t number) {
  hash = (hash ^ number) * 1099511628211u;
  return hash ^ hash >> 32;
}

}  // namespace

void Operation::Hold() {
  if (held_tensor_ == nullptr && tensor != nullptr) HoldTensor(*tensor);
  if (held_outputs_ == nullptr && !outputs.empty()) HoldOutputs({outputs.begin(), outputs.end()});
  if (held_inputs_ == nullptr && !inputs.empty()) HoldInputs({inputs.begin(), inputs.end()});
}

void Operation::HoldTensor(Tensor held) {
  held_tensor_ = std::make_shared<const Tensor>(std::move(held));
  tensor = held_tensor_.get();
}

void Operation::HoldOutputs(std::vector<Tensor> list) {
  held_outputs_ = std::make_shared<const std::vector<Tensor>>(std::move(list));
  outputs = *held_outputs_;
}

void Operation::HoldInputs(std::vector<Tensor> list) {
  held_inputs_ = std::make_shared<const std::vector<Tensor>>(std::move(list));
  inputs = *held_inputs_;
}

DType Operation::dtype() const {
  const Tensor* const moved = Moved();
  return moved != nullptr ? moved->dtype() : DType::kUInt8;
}

DeviceType Operation::device() const {
  const Tensor* const moved = Moved();
  return moved != nullptr ? moved->device().type : DeviceType::kCpu;
}

std::string Operation::ShortName(uint64_t sequence) const {
  return absl::StrCat(name(), " #", sequence);
}

std::string Operation::ListedToString() const {
  std::vector<std::string> runs;
  for (size_t i = 0, next; i < listed->size(); i = next) {
    const Tensor& tensor = (*listed)[i];
    next = i + 1;
    while (next < listed->size() && (*listed)[next].dtype() == tensor.dtype() &&
           (*listed)[next].shape() == tensor.shape()) {
      ++next;
    }
    if (runs.size() == kShownRuns) {
      runs.push_back(absl::StrCat(listed->size() - i, " more"));
      break;
    }
    const std::string times = next - i > 1 ? absl::StrCat(next - i, " x ") : "";
    runs.push_back(
        absl::StrCat(times, Name(tensor.dtype()), "[", absl::StrJoin(tensor.shape(), ", "), "]"));
  }
  return absl::StrJoin(runs, ", ");
}

uint64_t Operation::FormHash() const {
  uint64_t hash = 14695981039346656037u;
  for (const char c : name()) hash = Hash(hash, static_cast<uint8_t>(c));
  for (const Tensor& tensor : *listed) {
    hash = Hash(hash, static_cast<uint64_t>(tensor.dtype()));
    hash = Hash(hash, static_cast<uint64_t>(tensor.numel()));
  }
  return hash;
}

std::string Operation::ToString(uint64_t sequence) const {
  std::string details;
  if (listed != nullptr) {
    details = ListedToString();
  } else if (kind == OpKind::kAllToAll) {
    int64_t count = 0;
    for (const Tensor& input : inputs) count += input.numel();
    details = absl::StrCat(Name(dtype()), ", ", count, " elements to ", inputs.size(), " ranks");
  } else if (kind != OpKind::kBarrier) {
    details = tensor->ToString();
  }
  if (Reduces(kind)) absl::StrAppend(&details, ", ", Name(reduce_op));
  switch (kind) {
    case OpKind::kBroadcast:
    case OpKind::kReduce:
    case OpKind::kGather:
    case OpKind::kScatter:
      absl::StrAppend(&details, ", root ", peer);
      break;
    case OpKind::kSend:
      absl::StrAppend(&details, ", to rank ", peer, ", tag ", tag);
      break;
    case OpKind::kRecv:
      absl::StrAppend(&details, ", from ",
                      peer == kAnySource ? "any rank" : absl::StrCat("rank ", peer), ", tag ", tag);
      break;
    default:
      break;
  }
  if (!details.empty()) details = absl::StrCat(" (", details, ")");
  return absl::StrCat(ShortName(sequence), details);
}

absl::StatusOr<int> Dispatch(const Operation& operation, const CallContext& context,
                             Backend& backend, int rank) {
  if (operation.body) return operation.body(context, backend);
  const int peer = static_cast<int>(operation.peer);
  if (operation.kind == OpKind::kRecv) return backend.Recv(*operation.tensor, peer, context);
  const absl::Status status = operation.kind == OpKind::kSend
                                  ? backend.Send(*operation.tensor, peer, context)
                                  : DispatchCollective(operation, context, backend, rank);
  if (!status.ok()) return status;
  return 0;
}

}  // namespace syncline
