#include "syncline/collective.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/hash.h"

namespace syncline {
namespace {

// Of a list, as many runs of equal tensors are shown, and then how many more there are.
constexpr size_t kShownRuns = 8;

}  // namespace

void Collective::Own() {
  Owned next = owned_ != nullptr ? *owned_ : Owned();
  if (!next.tensor.has_value() && tensor != nullptr) next.tensor = *tensor;
  if (next.outputs.empty()) next.outputs.assign(outputs.begin(), outputs.end());
  if (next.inputs.empty()) next.inputs.assign(inputs.begin(), inputs.end());
  Hold(std::move(next));
}

void Collective::OwnTensor(Tensor owned) {
  Owned next = owned_ != nullptr ? *owned_ : Owned();
  next.tensor = std::move(owned);
  Hold(std::move(next));
}

void Collective::OwnOutputs(std::vector<Tensor> list) {
  Owned next = owned_ != nullptr ? *owned_ : Owned();
  next.outputs = std::move(list);
  has_equal_parts = false;
  if (next.outputs.empty()) outputs = {};
  Hold(std::move(next));
}

void Collective::OwnInputs(std::vector<Tensor> list) {
  Owned next = owned_ != nullptr ? *owned_ : Owned();
  next.inputs = std::move(list);
  has_equal_parts = false;
  if (next.inputs.empty()) inputs = {};
  Hold(std::move(next));
}

void Collective::Hold(Owned next) {
  owned_ = std::make_shared<const Owned>(std::move(next));
  if (owned_->tensor.has_value()) tensor = &*owned_->tensor;
  if (!owned_->outputs.empty()) outputs = owned_->outputs;
  if (!owned_->inputs.empty()) inputs = owned_->inputs;
}

uint64_t Collective::UserHash() const {
  if (user_tensors == nullptr) return 0;
  base::WordHash hash;
  hash.Add(base::Fnv1a64(name()));
  for (const Tensor& tensor : *user_tensors) {
    hash.Add(static_cast<uint64_t>(tensor.dtype()));
    hash.Add(static_cast<uint64_t>(tensor.numel()));
  }
  return hash.value();
}

ErrorOrigin::Operation Collective::OperationAt(uint64_t sequence, int rank) const {
  ErrorOrigin::Operation operation = {std::string(name()), sequence};
  if (IsP2p(kind)) {
    operation.peer = peer;
    operation.rank = rank;
  }
  return operation;
}

std::string Collective::ShortName(uint64_t sequence) const {
  return absl::StrCat(name(), " #", sequence);
}

std::string Collective::ToString(uint64_t sequence) const {
  std::string details;
  if (user_tensors != nullptr) {
    details = DescribeTensors(*user_tensors);
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

std::string DescribeTensors(absl::Span<const Tensor> tensors) {
  std::vector<std::string> runs;
  for (size_t i = 0, next; i < tensors.size(); i = next) {
    const Tensor& tensor = tensors[i];
    next = i + 1;
    while (next < tensors.size() && tensors[next].dtype() == tensor.dtype() &&
           tensors[next].shape() == tensor.shape()) {
      ++next;
    }
    if (runs.size() == kShownRuns) {
      runs.push_back(absl::StrCat(tensors.size() - i, " more"));
      break;
    }
    const std::string times = next - i > 1 ? absl::StrCat(next - i, " x ") : "";
    runs.push_back(
        absl::StrCat(times, Name(tensor.dtype()), "[", absl::StrJoin(tensor.shape(), ", "), "]"));
  }
  return absl::StrJoin(runs, ", ");
}

}  // namespace syncline
