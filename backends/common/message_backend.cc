#include "backends/common/message_backend.h"

namespace syncline::backends {

absl::Status MessageBackend::Broadcast(const Tensor& tensor, int root, const CallContext& context) {
  return RunCompared(context,
                     [&](auto& collectives) { return collectives.Broadcast(tensor, root); });
}

absl::Status MessageBackend::AllReduce(const Tensor& tensor, ReduceOp op,
                                       const CallContext& context) {
  return RunCompared(context, [&](auto& collectives) { return collectives.AllReduce(tensor, op); });
}

absl::Status MessageBackend::Reduce(const Tensor& tensor, ReduceOp op, int root,
                                    const CallContext& context) {
  return RunCompared(context,
                     [&](auto& collectives) { return collectives.Reduce(tensor, op, root); });
}

absl::Status MessageBackend::AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                                       const CallContext& context) {
  return RunCompared(context,
                     [&](auto& collectives) { return collectives.AllGather(outputs, input); });
}

absl::Status MessageBackend::Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                                    const CallContext& context) {
  return RunCompared(context,
                     [&](auto& collectives) { return collectives.Gather(outputs, input, root); });
}

absl::Status MessageBackend::Scatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                     int root, const CallContext& context) {
  return RunCompared(context,
                     [&](auto& collectives) { return collectives.Scatter(output, inputs, root); });
}

absl::Status MessageBackend::ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                           ReduceOp op, const CallContext& context) {
  return RunCompared(
      context, [&](auto& collectives) { return collectives.ReduceScatter(output, inputs, op); });
}

absl::Status MessageBackend::AllToAll(absl::Span<const Tensor> outputs,
                                      absl::Span<const Tensor> inputs, const CallContext& context) {
  return RunCompared(context,
                     [&](auto& collectives) { return collectives.AllToAll(outputs, inputs); });
}

}  // namespace syncline::backends
