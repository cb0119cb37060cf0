// A backend with a blocking function for each operation.
#ifndef SYNCLINE_BACKENDS_COMMON_TYPED_BACKEND_H_
#define SYNCLINE_BACKENDS_COMMON_TYPED_BACKEND_H_

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/group/blocking_backend.h"
#include "syncline/backend.h"
#include "syncline/op_kind.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::backends {

// Turns the calls of a BlockingBackend into the functions below, in which what an operation means
// is said by the factory of that name in include/syncline/collective.h; their arguments are the
// fields of `context.collective`. Every function blocks until this rank's part is done; an
// operation that a backend does not override is an UnsupportedError, which names it.
//
//   class MyBackend final : public TypedBackend {
//     absl::string_view name() const override { return "mine"; }
//     absl::Status Barrier(const CallContext& context) override { ... }
//     void Abort(const absl::Status& cause) override { ... }
//   };
class TypedBackend : public group::BlockingBackend {
 public:
  TypedBackend(int rank, int size) : group::BlockingBackend(rank), size_(size) {}

 protected:
  virtual absl::Status Broadcast(const Tensor& tensor, int root, const CallContext& context);
  virtual absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context);
  virtual absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root,
                              const CallContext& context);
  virtual absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                                 const CallContext& context);
  virtual absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                              const CallContext& context);
  virtual absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root,
                               const CallContext& context);
  virtual absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                     ReduceOp op, const CallContext& context);
  // Unless overridden, these two gather pieces of all ranks' tensors and reduce them on each rank:
  // they need AllGather, and memory for a piece of each rank.
  virtual absl::Status Scan(const Tensor& tensor, ReduceOp op, const CallContext& context);
  virtual absl::Status Exscan(const Tensor& tensor, ReduceOp op, const CallContext& context);
  virtual absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                                const CallContext& context);
  virtual absl::Status Barrier(const CallContext& context);
  virtual absl::Status Send(const Tensor& tensor, int dst, const CallContext& context);
  virtual absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context);

  // The one switch over all operations. A final class whose calls are short passes itself, in a
  // RunBlocking of its own: its functions are then called directly, or inlined.
  template <typename TheBackend>
  ABSL_ATTRIBUTE_ALWAYS_INLINE static inline absl::StatusOr<int> Dispatch(
      TheBackend& backend, const CallContext& context);
  absl::StatusOr<int> RunBlocking(const CallContext& context) override {
    return Dispatch(*this, context);
  }

 private:
  absl::Status Unsupported(OpKind kind) const;
  // Reduces the tensors of the ranks 0 to count - 1 to `tensor`, on this rank.
  absl::Status ReducePrefix(const Tensor& tensor, ReduceOp op, int count,
                            const CallContext& context);

  const int size_;
};

template <typename TheBackend>
inline absl::StatusOr<int> TypedBackend::Dispatch(TheBackend& backend, const CallContext& context) {
  const Collective& call = *context.collective;
  const int peer = call.peer;
  absl::Status status;
  switch (call.kind) {
    case OpKind::kBroadcast:
      status = backend.Broadcast(*call.tensor, peer, context);
      break;
    case OpKind::kAllReduce:
      status = backend.AllReduce(*call.tensor, call.reduce_op, context);
      break;
    case OpKind::kReduce:
      status = backend.Reduce(*call.tensor, call.reduce_op, peer, context);
      break;
    case OpKind::kAllGather:
      status = backend.AllGather(call.outputs, *call.tensor, context);
      break;
    case OpKind::kGather:
      status = backend.Gather(call.outputs, *call.tensor, peer, context);
      break;
    case OpKind::kScatter:
      status = backend.Scatter(*call.tensor, call.inputs, peer, context);
      break;
    case OpKind::kReduceScatter:
      status = backend.ReduceScatter(*call.tensor, call.inputs, call.reduce_op, context);
      break;
    case OpKind::kScan:
      status = backend.Scan(*call.tensor, call.reduce_op, context);
      break;
    case OpKind::kExscan:
      status = backend.Exscan(*call.tensor, call.reduce_op, context);
      break;
    case OpKind::kAllToAll:
      status = backend.AllToAll(call.outputs, call.inputs, context);
      break;
    case OpKind::kBarrier:
      status = backend.Barrier(context);
      break;
    case OpKind::kSend:
      status = backend.Send(*call.tensor, peer, context);
      break;
    case OpKind::kRecv:
      return backend.Recv(*call.tensor, peer, context);
  }
  if (!status.ok()) return status;
  return 0;
}

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_TYPED_BACKEND_H_
