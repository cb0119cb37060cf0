#include "core/group/plan.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "core/tensor/copy_bytes.h"
#include "core/tensor/reduce_kernels.h"
#include "syncline/reduce_op.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

using Tensors = std::vector<Tensor>;

void DoLoad(const Collective& call, const Plan::Load& load) {
  const Tensor& first = load.from.front();
  if (first.nbytes() == 0) return;
  std::byte* const to = load.to.In(call);
  if (load.from.size() == 1) {
    tensor::CopyBytes(to, first.data(), first.nbytes());
    return;
  }
  std::vector<const void*> inputs;
  for (const Tensor& tensor : load.from) inputs.push_back(tensor.data());
  // An average is divided once, when all ranks' sums have been added.
  const ReduceOp op = call.reduce_op == ReduceOp::kAvg ? ReduceOp::kSum : call.reduce_op;
  tensor::Reduce(first.dtype(), op, to, inputs, first.numel());
}

void DoStore(const Collective& call, const Plan::Store& store) {
  if (store.to.nbytes() == 0) return;
  const std::byte* const from = store.from.In(call);
  if (store.to.data() != from) tensor::CopyBytes(store.to.data(), from, store.to.nbytes());
}

}  // namespace

std::byte* Plan::Location::In(const Collective& call) const {
  const Tensor* tensor = call.tensor;
  if (part != kTensor) {
    tensor = &(call.kind == OpKind::kAllGather ? call.outputs : call.inputs)[part];
  }
  return tensor->data_as<std::byte>() + offset;
}

Plan::Plan(Collective collective, DType dtype, int64_t count, int parts, Tensors user_tensors)
    : collective(std::move(collective)), has_buffers(true), count(count), parts(parts) {
  Collective& call = this->collective;
  // On the device of the user's tensors, by which the backend is chosen.
  call.OwnTensor(Tensor(nullptr, dtype, {0}, {}, user_tensors.front().device()));
  Tensors placeholders(parts, *call.tensor);
  if (call.kind == OpKind::kAllGather) {
    call.OwnOutputs(std::move(placeholders));
  } else {
    call.OwnInputs(std::move(placeholders));
  }
  call.user_tensors = std::make_shared<const Tensors>(std::move(user_tensors));
}

Plan::Plan(Collective collective, Tensors user_tensors) : collective(std::move(collective)) {
  this->collective.Own();
  this->collective.user_tensors = std::make_shared<const Tensors>(std::move(user_tensors));
}

absl::StatusOr<Collective> Plan::MakeCall(
    absl::FunctionRef<absl::StatusOr<Tensor>(DType dtype, int64_t count)> make) const {
  Collective call = collective;
  if (!has_buffers) return call;
  const DType dtype = call.tensor->dtype();
  SYNCLINE_ASSIGN_OR_RETURN(Tensor buffer, make(dtype, count));
  call.OwnTensor(std::move(buffer));
  if (parts == 0) return call;
  // One after another in memory.
  SYNCLINE_ASSIGN_OR_RETURN(const Tensor all, make(dtype, count * parts));
  Tensors made;
  for (int r = 0; r < parts; ++r) made.push_back(all.Slice(r * count, count));
  if (call.kind == OpKind::kAllGather) {
    call.OwnOutputs(std::move(made));
  } else {
    call.OwnInputs(std::move(made));
  }
  return call;
}

void Plan::LoadPacked(absl::Span<const Tensor> tensors, int part) {
  int64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    loads.push_back({{tensor}, {part, offset}});
    offset += static_cast<int64_t>(tensor.nbytes());
  }
}

void Plan::StorePacked(int part, absl::Span<const Tensor> tensors) {
  int64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    stores.push_back({{part, offset}, tensor});
    offset += static_cast<int64_t>(tensor.nbytes());
  }
}

absl::Status RunPlan(const Plan& plan, const CallContext& context, Backend& backend) {
  SYNCLINE_ASSIGN_OR_RETURN(const Collective call, plan.MakeCall([](DType dtype, int64_t count) {
    return Tensor::TryZeros(dtype, {count});
  }));
  for (const Plan::Load& load : plan.loads) DoLoad(call, load);
  SYNCLINE_RETURN_IF_ERROR(RunAndWait(backend, call, context).status());
  if (plan.divisor > 1 && call.reduce_op == ReduceOp::kAvg) {
    tensor::Divide(call.tensor->dtype(), call.tensor->data(), plan.divisor, call.tensor->numel());
  }
  for (const Plan::Store& store : plan.stores) DoStore(call, store);
  return absl::OkStatus();
}

}  // namespace syncline::group
