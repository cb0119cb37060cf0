#include "backends/local/movement.h"

#include <cstring>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/tensor/reduce_kernels.h"

namespace syncline {
namespace {

using Parts = absl::Span<const Part>;

void Copy(const Tensor& from, const Tensor& to) {
  if (from.nbytes() == 0 || from.data() == to.data()) return;
  std::memcpy(to.data(), from.data(), from.nbytes());
}

// Reduces input_of(part) of all parts, in the order of ranks, to `result`, which may be one of
// them.
void ReduceTo(const Tensor& result, Parts parts,
              absl::FunctionRef<const Tensor&(const Part&)> input_of) {
  if (result.numel() == 0) return;
  std::vector<const void*> inputs;
  for (const Part& part : parts) inputs.push_back(input_of(part).data());
  Reduce(result.dtype(), parts[0].call.op, result.data(), inputs, result.numel());
}

const Tensor& OwnTensor(const Part& part) { return part.tensor; }

void ExecuteBroadcast(Parts parts) {
  const Tensor& source = parts[parts[0].call.peer].tensor;
  for (const Part& part : parts) Copy(source, part.tensor);
}

void ExecuteAllReduce(Parts parts) {
  const Tensor& result = parts[0].tensor;
  ReduceTo(result, parts, &OwnTensor);
  for (const Part& part : parts) Copy(result, part.tensor);
}

void ExecuteReduce(Parts parts) { ReduceTo(parts[parts[0].call.peer].tensor, parts, &OwnTensor); }

void GatherTo(absl::Span<const Tensor> outputs, Parts parts) {
  for (size_t rank = 0; rank < parts.size(); ++rank) Copy(parts[rank].tensor, outputs[rank]);
}

void ExecuteAllGather(Parts parts) {
  for (const Part& to : parts) GatherTo(to.outputs, parts);
}

void ExecuteGather(Parts parts) { GatherTo(parts[parts[0].call.peer].outputs, parts); }

void ExecuteScatter(Parts parts) {
  const absl::Span<const Tensor> inputs = parts[parts[0].call.peer].inputs;
  for (size_t rank = 0; rank < parts.size(); ++rank) Copy(inputs[rank], parts[rank].tensor);
}

void ExecuteReduceScatter(Parts parts) {
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    ReduceTo(parts[rank].tensor, parts,
             [&](const Part& part) -> const Tensor& { return part.inputs[rank]; });
  }
}

void ExecuteAllToAll(Parts parts) {
  for (size_t from = 0; from < parts.size(); ++from) {
    for (size_t to = 0; to < parts.size(); ++to) {
      Copy(parts[from].inputs[to], parts[to].outputs[from]);
    }
  }
}

}  // namespace

void Execute(Parts parts) {
  switch (parts[0].call.kind) {
    case OpKind::kBroadcast:
      return ExecuteBroadcast(parts);
    case OpKind::kAllReduce:
      return ExecuteAllReduce(parts);
    case OpKind::kReduce:
      return ExecuteReduce(parts);
    case OpKind::kAllGather:
      return ExecuteAllGather(parts);
    case OpKind::kGather:
      return ExecuteGather(parts);
    case OpKind::kScatter:
      return ExecuteScatter(parts);
    case OpKind::kReduceScatter:
      return ExecuteReduceScatter(parts);
    case OpKind::kAllToAll:
      return ExecuteAllToAll(parts);
    case OpKind::kBarrier:
    case OpKind::kSend:
    case OpKind::kRecv:
      return;
  }
}

void Transfer(const Part& sent, const Part& received) { Copy(sent.tensor, received.tensor); }

}  // namespace syncline
