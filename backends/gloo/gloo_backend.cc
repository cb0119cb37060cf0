// TCP between hosts, by Gloo (https://github.com/facebookincubator/gloo).
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "backends/common/call.h"
#include "backends/gloo/call_check.h"
#include "backends/gloo/collective.h"
#include "backends/gloo/lifecycle.h"
#include "backends/gloo/mesh.h"
#include "backends/gloo/p2p.h"
#include "backends/gloo/sigpipe.h"
#include "core/backend.h"
#include "core/backend_registry.h"
#include "core/status.h"

namespace syncline {
namespace {

std::vector<int> AllBut(int rank, int size) {
  std::vector<int> others;
  for (int other = 0; other < size; ++other) {
    if (other != rank) others.push_back(other);
  }
  return others;
}

class GlooBackend final : public Backend {
 public:
  GlooBackend(std::unique_ptr<Mesh> mesh, const BackendConfig& config)
      : others_(AllBut(config.rank, config.size)),
        mismatch_check_(config.mismatch_check),
        mesh_(std::move(mesh)),
        check_(*mesh_, config.rank, config.size),
        lifecycle_(*mesh_, config.store) {}

  ~GlooBackend() override { Abort(BackendError("the backend was destroyed")); }

  // Returns once all ranks have connected, and watch over each other.
  absl::Status Connect(const Deadline& deadline) {
    mesh_->Watch([this] { OnPeerGone(); });
    const Call call = Call::Barrier(CallContext{});
    return lifecycle_.Run({call, others_, "connecting all ranks"}, deadline, [&](const auto& gloo) {
      check_.Begin();
      return check_.Agree(*gloo, call, deadline);
    });
  }

  absl::string_view name() const override { return "gloo"; }

  absl::Status Broadcast(const Tensor& tensor, int root, const CallContext& context) override {
    return Run(Call::Broadcast(tensor, root, context), context,
               [&](Collective& collective) { collective.Broadcast(tensor, root); });
  }

  absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context) override {
    return Run(Call::AllReduce(tensor, op, context), context,
               [&](Collective& collective) { collective.AllReduce(tensor, op); });
  }

  absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root,
                      const CallContext& context) override {
    return Run(Call::Reduce(tensor, op, root, context), context,
               [&](Collective& collective) { collective.Reduce(tensor, op, root); });
  }

  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                         const CallContext& context) override {
    return Run(Call::AllGather(outputs, input, context), context,
               [&](Collective& collective) { collective.AllGather(outputs, input); });
  }

  absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                      const CallContext& context) override {
    return Run(Call::Gather(input, root, context), context,
               [&](Collective& collective) { collective.Gather(outputs, input, root); });
  }

  absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root,
                       const CallContext& context) override {
    return Run(Call::Scatter(output, root, context), context,
               [&](Collective& collective) { collective.Scatter(output, inputs, root); });
  }

  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op,
                             const CallContext& context) override {
    return Run(Call::ReduceScatter(output, inputs, op, context), context,
               [&](Collective& collective) { collective.ReduceScatter(output, inputs, op); });
  }

  absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                        const CallContext& context) override {
    return Run(Call::AllToAll(outputs, inputs, context), context,
               [&](Collective& collective) { collective.AllToAll(outputs, inputs); });
  }

  // To agree on a call is to meet in it.
  absl::Status Barrier(const CallContext& context) override {
    const Call call = Call::Barrier(context);
    return lifecycle_.Run({call, others_}, context.deadline, [&](const auto& gloo) {
      return check_.Agree(*gloo, call, context.deadline);
    });
  }

  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override {
    const Call call = Call::Send(tensor, dst, context);
    return lifecycle_.Run({call, absl::MakeSpan(&dst, 1)}, context.deadline, [&](const auto& gloo) {
      p2p_.Send(*gloo, tensor, call);
      return absl::OkStatus();
    });
  }

  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override {
    const Call call = Call::Recv(tensor, src, context);
    const absl::Span<const int> awaited =
        src == kAnySource ? absl::MakeConstSpan(others_) : absl::MakeConstSpan(&src, 1);
    int sender = src;
    const absl::Status status =
        lifecycle_.Run({call, awaited}, context.deadline, [&](const auto& gloo) -> absl::Status {
          SYNCLINE_ASSIGN_OR_RETURN(sender, p2p_.Recv(*gloo, tensor, call, context.deadline));
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
    return sender;
  }

  void Abort(const absl::Status& cause) override { lifecycle_.Abort(cause); }

 private:
  // A collective that moves data.
  absl::Status Run(const Call& call, const CallContext& context,
                   absl::FunctionRef<void(Collective&)> move) {
    return lifecycle_.Run({call, others_}, context.deadline, [&](const auto& gloo) -> absl::Status {
      if (mismatch_check_ == MismatchCheck::kOn) {
        SYNCLINE_RETURN_IF_ERROR(check_.Agree(*gloo, call, context.deadline));
      }
      Collective collective(gloo, context.sequence);
      move(collective);
      return absl::OkStatus();
    });
  }

  void OnPeerGone() {
    if (!mesh_->lost().empty()) {
      lifecycle_.TellIfIdle();
    } else if (mesh_->left().size() == others_.size()) {
      p2p_.EndFromAny();
    }
  }

  const std::vector<int> others_;
  const MismatchCheck mismatch_check_;
  const std::unique_ptr<Mesh> mesh_;
  CallCheck check_;
  P2p p2p_;
  Lifecycle lifecycle_;
};

absl::StatusOr<std::shared_ptr<Backend>> MakeGloo(const BackendConfig& config) {
  const ScopedSigpipeBlock no_sigpipe;  // Gloo's thread inherits it.
  Mesh::Options options;
  options.rank = config.rank;
  options.size = config.size;
  options.address = config.local_address.empty() ? "127.0.0.1" : config.local_address;
  options.mismatch_check = config.mismatch_check;
  SYNCLINE_ASSIGN_OR_RETURN(auto mesh, Mesh::Connect(*config.store, options, config.deadline));
  auto backend = std::make_shared<GlooBackend>(std::move(mesh), config);
  SYNCLINE_RETURN_IF_ERROR(backend->Connect(config.deadline));
  return backend;
}

const BackendRegistry::Registration kGloo("gloo", {Capabilities::All(), &MakeGloo});

}  // namespace
}  // namespace syncline
