// Backend gloo: TCP between processes and hosts, by Gloo
// (https://github.com/facebookincubator/gloo).
#ifndef SYNCLINE_BACKENDS_GLOO_GLOO_BACKEND_H_
#define SYNCLINE_BACKENDS_GLOO_GLOO_BACKEND_H_

#include <functional>
#include <memory>
#include <utility>
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
//
// A backend that is built on this one (backends/hierarchical) uses Execute, has_lost_peer and the
// callback of Make. It gets deadlines, the watch over the peers and the diagnosis of failures from
// here, and moves the data itself:
//
//   gloo->Execute(call, context, [&](GlooBackend::Operation& operation) -> absl::Status {
//     SYNCLINE_RETURN_IF_ERROR(MoveSomeData());
//     operation.collectives().Gather(outputs, input, root);
//     return absl::OkStatus();
//   });
class GlooBackend final : public backends::MessageBackend {
 public:
  // Called on the watch's thread, also before Make returns, whenever a peer has left or was lost.
  using OnPeerGone = std::function<void(const GlooBackend& gloo)>;

  // Collective: returns once all ranks have connected and watch each other. Errors are those of
  // PeerTable::Join, and a MismatchError where MismatchCheck is not the same on all ranks.
  static absl::StatusOr<std::unique_ptr<GlooBackend>> Make(const BackendConfig& config,
                                                           OnPeerGone on_peer_gone = nullptr);

  ~GlooBackend() override;

  absl::string_view name() const override { return "gloo"; }

  absl::Status Barrier(const CallContext& context) override;
  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override;
  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override;

  void Abort(const absl::Status& cause) override;

  // One collective under way, inside of Execute. All methods are collective and throw what Gloo
  // throws, which Execute catches. Valid until the function that got it returns.
  class Operation {
   public:
    // Compares the ranks' calls, see CallCheck::Compare.
    absl::Status CompareCalls() { return check_.Compare(gloo_, context_); }

    // For ranks that know that their calls differ, see gloo_backend::GatherCalls.
    absl::Status GatherCalls() { return gloo_backend::GatherCalls(gloo_, context_); }

    // Moves data over Gloo's connections. Requires that all ranks' calls go together.
    backends::MessageCollectives collectives() {
      return backends::MessageCollectives(transport_, kMessageThresholds, scratch_);
    }

   private:
    friend class GlooBackend;
    Operation(std::shared_ptr<gloo::Context> gloo, GlooBackend& backend,
              const CallContext& context);

    const std::shared_ptr<gloo::Context> gloo_;
    GlooTransport transport_;
    CallCheck& check_;
    backends::ScratchArena& scratch_;
    const CallContext& context_;
  };

  // Runs `body` as the collective of `context`. If it fails or throws, the group fails on all
  // ranks, and the result says which ranks are at fault. The ranks' calls are not compared: `body`
  // sees to that.
  using Body = absl::FunctionRef<absl::Status(Operation& operation)>;
  absl::Status Execute(const CallContext& context, Body body);

  // Whether the connection to a peer has broken without a leave message. Then the group has failed.
  // Thread-safe.
  bool has_lost_peer() const { return !mesh_->lost().empty(); }

 private:
  GlooBackend(std::unique_ptr<Mesh> mesh, const BackendConfig& config, OnPeerGone on_peer_gone);

  absl::Status Connect(const Deadline& deadline);

  // Runs `body` with a context for one operation, and turns what Gloo throws into an error.
  using GlooBody = absl::FunctionRef<absl::Status(const std::shared_ptr<gloo::Context>& gloo)>;
  absl::Status Run(const backends::Lifecycle::OperationScope& scope, GlooBody body);

  // Of collectives that Gloo's connections alone carry.
  absl::Status RunCompared(const CallContext& context, Algorithm algorithm) override;

  void HandlePeerGone();

  const std::vector<int> others_;
  const MismatchCheck mismatch_check_;
  const OnPeerGone on_peer_gone_;
  const std::unique_ptr<Mesh> mesh_;
  CallCheck check_;
  P2p p2p_;
  backends::ScratchArena scratch_;  // Of the collective under way.
  backends::Lifecycle lifecycle_;
};

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_GLOO_BACKEND_H_
