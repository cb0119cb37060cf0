#include "backends/local/movement.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/reduce_kernels.h"
#include "core/status.h"

namespace syncline {
namespace {

void Copy(const Tensor& from, const Tensor& to) {
  if (from.data() != to.data()) std::memcpy(to.data(), from.data(), from.nbytes());
}

void ExecuteBroadcast(absl::Span<const Part> parts) {
  const Tensor& source = parts[parts[0].call.peer].tensor;
  for (const Part& part : parts) Copy(source, part.tensor);
}

void ExecuteAllReduce(absl::Span<const Part> parts) {
  std::vector<const void*> inputs;
  for (const Part& part : parts) inputs.push_back(part.tensor.data());
  const Tensor& result = parts[0].tensor;
  Reduce(result.dtype(), parts[0].call.op, result.data(), inputs, result.numel());
  for (const Part& part : parts) Copy(result, part.tensor);
}

void ExecuteAllGather(absl::Span<const Part> parts) {
  for (const Part& to : parts) {
    for (size_t rank = 0; rank < parts.size(); ++rank) Copy(parts[rank].tensor, to.outputs[rank]);
  }
}

}  // namespace

absl::Status CheckSame(absl::Span<const Part> parts) {
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    if (parts[rank].call != parts[0].call) {
      return MismatchError(absl::StrCat("rank 0 called ", parts[0].call.ToString(), ", rank ", rank,
                                        " called ", parts[rank].call.ToString(),
                                        ": all ranks must make the same calls in the same order"));
    }
  }
  return absl::OkStatus();
}

void Execute(absl::Span<const Part> parts) {
  if (parts[0].call.count == 0) return;
  switch (parts[0].call.kind) {
    case OpKind::kBroadcast:
      return ExecuteBroadcast(parts);
    case OpKind::kAllReduce:
      return ExecuteAllReduce(parts);
    case OpKind::kAllGather:
      return ExecuteAllGather(parts);
    case OpKind::kBarrier:
    case OpKind::kSend:
    case OpKind::kRecv:
      return;
  }
}

void Transfer(const Part& sent, const Part& received) {
  if (sent.call.count != 0) Copy(sent.tensor, received.tensor);
}

}  // namespace syncline
