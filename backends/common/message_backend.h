// A backend whose collectives are algorithms over messages.
#ifndef SYNCLINE_BACKENDS_COMMON_MESSAGE_BACKEND_H_
#define SYNCLINE_BACKENDS_COMMON_MESSAGE_BACKEND_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "backends/common/message_collectives.h"
#include "backends/common/typed_backend.h"
#include "syncline/backend.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::backends {

// Implements the collectives of TypedBackend by those of MessageCollectives, and scan and exscan by
// all_gather. The derived class supplies RunCompared, barrier, send and recv.
//
//   class MyBackend final : public MessageBackend {
//     absl::Status RunCompared(const CallContext& context, Algorithm algorithm) override {
//       return lifecycle_.Run({context, others_}, [&]() -> absl::Status {
//         MyTransport transport(*connections_, context);
//         SYNCLINE_RETURN_IF_ERROR(CompareCalls(transport, context, ...));
//         MessageCollectives collectives(transport, kMessageThresholds, scratch_);
//         return algorithm(collectives);
//       });
//     }
//   };
class MessageBackend : public TypedBackend {
 public:
  using TypedBackend::TypedBackend;

 protected:
  using Algorithm = absl::FunctionRef<absl::Status(MessageCollectives& collectives)>;

  // Runs the collective of `context`: compares the ranks' calls, unless MismatchCheck is off, and
  // then calls `algorithm`, once, with collectives whose transport has the call's deadline. Returns
  // the error of either, as the backend reports it to its user.
  virtual absl::Status RunCompared(const CallContext& context, Algorithm algorithm) = 0;

  absl::Status Broadcast(const Tensor& tensor, int root, const CallContext& context) override;
  absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context) override;
  absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root,
                      const CallContext& context) override;
  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                         const CallContext& context) override;
  absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                      const CallContext& context) override;
  absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root,
                       const CallContext& context) override;
  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op,
                             const CallContext& context) override;
  absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                        const CallContext& context) override;
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_MESSAGE_BACKEND_H_
