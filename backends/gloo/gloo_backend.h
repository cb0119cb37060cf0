// TCP between hosts, by Gloo (https://github.com/facebookincubator/gloo).
#ifndef SYNCLINE_BACKENDS_GLOO_GLOO_BACKEND_H_
#define SYNCLINE_BACKENDS_GLOO_GLOO_BACKEND_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/common/call.h"
#include "backends/gloo/call_check.h"
#include "backends/gloo/collective.h"
#include "backends/gloo/lifecycle.h"
#include "backends/gloo/mesh.h"
#include "backends/gloo/p2p.h"
#include "core/group/backend.h"
#include "gloo/context.h"

namespace syncline {

class GlooBackend final : public Backend {
 public:
  // Called on the watch's thread, already before Make returns, whenever a peer has left or was
  // lost.
  using OnPeerGone = std::function<void(const GlooBackend& gloo)>;

  // Collective: returns once all ranks have connected, and watch over each other.
  static absl::StatusOr<std::unique_ptr<GlooBackend>> Make(const BackendConfig& config,
                                                           OnPeerGone on_peer_gone = nullptr);

  ~GlooBackend() override;

  absl::string_view name() const override { return "gloo"; }

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
  absl::Status Barrier(const CallContext& context) override;
  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override;
  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override;

  void Abort(const absl::Status& cause) override;

  // The way of every collective that moves data: runs `move`, with a context whose waits end by an
  // exception. If it throws or fails, the group is broken on all ranks, and the error says why. The
  // ranks' calls are not compared: whoever uses it sees to that.
  using Move = absl::FunctionRef<absl::Status(const std::shared_ptr<gloo::Context>&)>;
  absl::Status Perform(const Call& call, const CallContext& context, Move move);

  // For those who use Perform: as CallCheck::Agree.
  absl::Status Agree(gloo::Context& gloo, const Call& call, const Deadline& deadline) {
    return check_.Agree(gloo, call, deadline);
  }

  // Whether the connection to a peer has broken without its leave. Then the group is broken.
  bool has_lost_peer() const { return !mesh_->lost().empty(); }

 private:
  GlooBackend(std::unique_ptr<Mesh> mesh, const BackendConfig& config, OnPeerGone on_peer_gone);

  absl::Status Connect(const Deadline& deadline);

  // A collective of Gloo's alone, on which all ranks agree first.
  absl::Status Run(const Call& call, const CallContext& context,
                   absl::FunctionRef<void(Collective&)> move);

  void HandlePeerGone();

  const std::vector<int> others_;
  const MismatchCheck mismatch_check_;
  const OnPeerGone on_peer_gone_;
  const std::unique_ptr<Mesh> mesh_;
  CallCheck check_;
  P2p p2p_;
  Lifecycle lifecycle_;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_GLOO_GLOO_BACKEND_H_
