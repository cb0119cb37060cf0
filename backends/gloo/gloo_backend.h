// Backend gloo: TCP between processes and hosts, by Gloo
// (https://github.com/facebookincubator/gloo).
#ifndef SYNCLINE_BACKENDS_GLOO_GLOO_BACKEND_H_
#define SYNCLINE_BACKENDS_GLOO_GLOO_BACKEND_H_

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/common/lifecycle.h"
#include "backends/common/message_backend.h"
#include "backends/common/message_collectives.h"
#include "backends/common/scratch_arena.h"
#include "backends/gloo/call_check.h"
#include "backends/gloo/mesh.h"
#include "backends/gloo/p2p.h"
#include "backends/gloo/thresholds.h"
#include "backends/gloo/transfers.h"
#include "gloo/context.h"
#include "syncline/backend.h"

namespace syncline::gloo_backend {

// One rank's end of a group. Threads, ownership and errors are those of Backend.
class GlooBackend final : public backends::MessageBackend {
 public:
  // Collective: returns once all ranks have connected and watch each other. Errors are those of
  // PeerTable::Join, and a MismatchError where MismatchCheck is not the same on all ranks.
  static absl::StatusOr<std::unique_ptr<GlooBackend>> Make(const BackendConfig& config);

  ~GlooBackend() override;

  absl::string_view name() const override { return "gloo"; }

  absl::Status Barrier(const CallContext& context) override;
  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override;
  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override;

  void Abort(const absl::Status& cause) override;

 private:
  GlooBackend(std::unique_ptr<Mesh> mesh, const BackendConfig& config);

  absl::Status Connect(const Deadline& deadline);

  // Runs `body` with a context for one operation, and turns what Gloo throws into an error.
  using GlooBody = absl::FunctionRef<absl::Status(const std::shared_ptr<gloo::Context>& gloo)>;
  absl::Status Run(const backends::Lifecycle::OperationScope& scope, GlooBody body);

  // Of collectives that Gloo's connections alone carry.
  absl::Status RunCompared(const CallContext& context, Algorithm algorithm) override;

  void HandlePeerGone();

  const std::vector<int> others_;
  const MismatchCheck mismatch_check_;
  const std::unique_ptr<Mesh> mesh_;
  CallCheck check_;
  P2p p2p_;
  backends::ScratchArena scratch_;  // Of the collective under way.
  backends::Lifecycle lifecycle_;
};

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_GLOO_BACKEND_H_
