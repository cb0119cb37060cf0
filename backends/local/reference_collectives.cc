#include "backends/local/reference_collectives.h"

#include <cstring>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/tensor/reduce_kernels.h"
#include "syncline/check.h"
#include "syncline/tensor.h"

namespace syncline::local {
namespace {

using Calls = absl::Span<const Collective* const>;

void Copy(const Tensor& from, const Tensor& to) {
  SYNCLINE_DCHECK(from.dtype() == to.dtype() && from.numel() == to.numel());
  if (from.nbytes() == 0 || from.data() == to.data()) return;
  std::memcpy(to.data(), from.data(), from.nbytes());
}

const Collective& RootOf(Calls calls) { return *calls[calls[0]->peer]; }

// Reduces input_of(call) of all calls, in the order of ranks, to `result`, which may be one of
// them.
void ReduceTo(const Tensor& result, Calls calls,
              absl::FunctionRef<const Tensor&(const Collective&)> input_of) {
  if (result.numel() == 0) return;
  std::vector<const void*> inputs;
  for (const Collective* call : calls) {
    const Tensor& input = input_of(*call);
    SYNCLINE_DCHECK(input.dtype() == result.dtype() && input.numel() == result.numel());
    inputs.push_back(input.data());
  }
  tensor::Reduce(result.dtype(), calls[0]->reduce_op, result.data(), inputs, result.numel());
}

const Tensor& OwnTensor(const Collective& call) { return *call.tensor; }

void Broadcast(Calls calls) {
  for (const Collective* call : calls) Copy(*RootOf(calls).tensor, *call->tensor);
}

void AllReduce(Calls calls) {
  const Tensor& result = *calls[0]->tensor;
  ReduceTo(result, calls, &OwnTensor);
  for (const Collective* call : calls) Copy(result, *call->tensor);
}

void Reduce(Calls calls) { ReduceTo(*RootOf(calls).tensor, calls, &OwnTensor); }

void GatherTo(absl::Span<const Tensor> outputs, Calls calls) {
  for (size_t rank = 0; rank < calls.size(); ++rank) Copy(*calls[rank]->tensor, outputs[rank]);
}

void AllGather(Calls calls) {
  for (const Collective* to : calls) GatherTo(to->outputs, calls);
}

void Gather(Calls calls) { GatherTo(RootOf(calls).outputs, calls); }

void Scatter(Calls calls) {
  const absl::Span<const Tensor> inputs = RootOf(calls).inputs;
  for (size_t rank = 0; rank < calls.size(); ++rank) Copy(inputs[rank], *calls[rank]->tensor);
}

void ReduceScatter(Calls calls) {
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    ReduceTo(*calls[rank]->tensor, calls,
             [&](const Collective& call) -> const Tensor& { return call.inputs[rank]; });
  }
}

// From the last rank down, so that the tensors of lower ranks are still their inputs.
void Scan(Calls calls) {
  for (size_t r = calls.size(); r > 0; --r) {
    ReduceTo(*calls[r - 1]->tensor, calls.first(r), &OwnTensor);
  }
}

void Exscan(Calls calls) {
  for (size_t r = calls.size(); r > 1; --r) {
    ReduceTo(*calls[r - 1]->tensor, calls.first(r - 1), &OwnTensor);
  }
}

void AllToAll(Calls calls) {
  for (size_t from = 0; from < calls.size(); ++from) {
    for (size_t to = 0; to < calls.size(); ++to) {
      Copy(calls[from]->inputs[to], calls[to]->outputs[from]);
    }
  }
}

}  // namespace

void RunReference(Calls calls) {
  switch (calls[0]->kind) {
    case OpKind::kBroadcast:
      return Broadcast(calls);
    case OpKind::kAllReduce:
      return AllReduce(calls);
    case OpKind::kReduce:
      return Reduce(calls);
    case OpKind::kAllGather:
      return AllGather(calls);
    case OpKind::kGather:
      return Gather(calls);
    case OpKind::kScatter:
      return Scatter(calls);
    case OpKind::kReduceScatter:
      return ReduceScatter(calls);
    case OpKind::kScan:
      return Scan(calls);
    case OpKind::kExscan:
      return Exscan(calls);
    case OpKind::kAllToAll:
      return AllToAll(calls);
    case OpKind::kBarrier:
    case OpKind::kSend:
    case OpKind::kRecv:
      return;
  }
}

void CopyMessage(const Collective& sent, const Collective& received) {
  Copy(*sent.tensor, *received.tensor);
}

}  // namespace syncline::local
