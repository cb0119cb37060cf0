#include "backends/common/typed_backend.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace syncline {

absl::StatusOr<int> TypedBackend::RunBlocking(const CallContext& context) {
  const Collective& call = *context.collective;
  const int peer = static_cast<int>(call.peer);
  absl::Status status;
  switch (call.kind) {
    case OpKind::kBroadcast:
      status = Broadcast(*call.tensor, peer, context);
      break;
    case OpKind::kAllReduce:
      status = AllReduce(*call.tensor, call.reduce_op, context);
      break;
    case OpKind::kReduce:
      status = Reduce(*call.tensor, call.reduce_op, peer, context);
      break;
    case OpKind::kAllGather:
      status = AllGather(call.outputs, *call.tensor, context);
      break;
    case OpKind::kGather:
      status = Gather(call.outputs, *call.tensor, peer, context);
      break;
    case OpKind::kScatter:
      status = Scatter(*call.tensor, call.inputs, peer, context);
      break;
    case OpKind::kReduceScatter:
      status = ReduceScatter(*call.tensor, call.inputs, call.reduce_op, context);
      break;
    case OpKind::kAllToAll:
      status = AllToAll(call.outputs, call.inputs, context);
      break;
    case OpKind::kBarrier:
      status = Barrier(context);
      break;
    case OpKind::kSend:
      status = Send(*call.tensor, peer, context);
      break;
    case OpKind::kRecv:
      return Recv(*call.tensor, peer, context);
  }
  if (!status.ok()) return status;
  return 0;
}

absl::Status TypedBackend::Unsupported(OpKind kind) const {
  return UnsupportedError(absl::StrCat("backend ", name(), " does not serve ", Name(kind)));
}

absl::Status TypedBackend::Broadcast(const Tensor&, int, const CallContext&) {
  return Unsupported(OpKind::kBroadcast);
}
absl::Status TypedBackend::AllReduce(const Tensor&, ReduceOp, const CallContext&) {
  return Unsupported(OpKind::kAllReduce);
}
absl::Status TypedBackend::Reduce(const Tensor&, ReduceOp, int, const CallContext&) {
  return Unsupported(OpKind::kReduce);
}
absl::Status TypedBackend::AllGather(absl::Span<const Tensor>, const Tensor&, const CallContext&) {
  return Unsupported(OpKind::kAllGather);
}
absl::Status TypedBackend::Gather(absl::Span<const Tensor>, const Tensor&, int,
                                  const CallContext&) {
  return Unsupported(OpKind::kGather);
}
absl::Status TypedBackend::Scatter(const Tensor&, absl::Span<const Tensor>, int,
                                   const CallContext&) {
  return Unsupported(OpKind::kScatter);
}
absl::Status TypedBackend::ReduceScatter(const Tensor&, absl::Span<const Tensor>, ReduceOp,
                                         const CallContext&) {
  return Unsupported(OpKind::kReduceScatter);
}
absl::Status TypedBackend::AllToAll(absl::Span<const Tensor>, absl::Span<const Tensor>,
                                    const CallContext&) {
  return Unsupported(OpKind::kAllToAll);
}
absl::Status TypedBackend::Barrier(const CallContext&) { return Unsupported(OpKind::kBarrier); }
absl::Status TypedBackend::Send(const Tensor&, int, const CallContext&) {
  return Unsupported(OpKind::kSend);
}
absl::StatusOr<int> TypedBackend::Recv(const Tensor&, int, const CallContext&) {
  return Unsupported(OpKind::kRecv);
}

}  // namespace syncline
