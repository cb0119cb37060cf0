#include "backends/gloo/gloo_backend.h"

#include <utility>

#include "backends/common/call_description.h"
#include "backends/gloo/sigpipe.h"
#include "backends/gloo/slots.h"
#include "syncline/backend_registry.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::gloo_backend {
namespace {

absl::StatusOr<std::shared_ptr<Backend>> MakeGloo(const BackendConfig& config) {
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Backend> backend, GlooBackend::Make(config));
  return backend;
}

const BackendRegistry::Registration kGloo("gloo", {Capabilities::AllThroughHost(), &MakeGloo});

}  // namespace

absl::StatusOr<std::unique_ptr<GlooBackend>> GlooBackend::Make(const BackendConfig& config) {
  // Gloo's thread, which Connect starts, inherits the signal mask.
  const ScopedSigpipeBlock no_sigpipe;
  Mesh::Options options;
  options.rank = config.rank;
  options.size = config.size;
  options.address = config.local_address.empty() ? "127.0.0.1" : config.local_address;
  options.mismatch_check = config.mismatch_check;
  options.check_peers = config.check_peers;
  SYNCLINE_ASSIGN_OR_RETURN(auto mesh, Mesh::Connect(config.store, options, config.deadline));
  std::unique_ptr<GlooBackend> backend(new GlooBackend(std::move(mesh), config));
  SYNCLINE_RETURN_IF_ERROR(backend->Connect(config.deadline));
  return backend;
}

GlooBackend::GlooBackend(std::unique_ptr<Mesh> mesh, const BackendConfig& config)
    : backends::MessageBackend(config.rank, config.size),
      others_(backends::OtherRanks(config.rank, config.size)),
      mismatch_check_(config.mismatch_check),
      mesh_(std::move(mesh)),
      check_(*mesh_, config.rank, config.size),
      lifecycle_(*mesh_, config.store) {}

GlooBackend::~GlooBackend() { Abort(BackendError("the backend was destroyed")); }

absl::Status GlooBackend::Connect(const Deadline& deadline) {
  const absl::Status watched = mesh_->Watch([this] { HandlePeerGone(); });
  if (!watched.ok()) {
    Abort(watched);  // The leave message tells the peers why.
    return watched;
  }
  const Collective barrier = Collective::Barrier();
  CallContext connecting;
  connecting.deadline = deadline;
  connecting.collective = &barrier;
  return Run({connecting, others_, "connecting all ranks"}, [&](const auto& gloo) {
    check_.Start();
    return check_.Compare(gloo, connecting);
  });
}

// A comparison of the calls is a barrier already.
absl::Status GlooBackend::Barrier(const CallContext& context) {
  return Run({context, others_}, [&](const auto& gloo) { return check_.Compare(gloo, context); });
}

absl::Status GlooBackend::Send(const Tensor& tensor, int dst, const CallContext& context) {
  return Run({context, absl::MakeSpan(&dst, 1)}, [&](const auto& gloo) {
    p2p_.Send(*gloo, tensor, context);
    return absl::OkStatus();
  });
}

absl::StatusOr<int> GlooBackend::Recv(const Tensor& tensor, int src, const CallContext& context) {
  const absl::Span<const int> awaited =
      src == kAnySource ? absl::MakeConstSpan(others_) : absl::MakeConstSpan(&src, 1);
  int sender = src;
  const absl::Status status = Run({context, awaited}, [&](const auto& gloo) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(sender, p2p_.Recv(*gloo, tensor, context));
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return sender;
}

void GlooBackend::Abort(const absl::Status& cause) {
  const ScopedSigpipeBlock no_sigpipe;
  lifecycle_.Abort(cause);
}

absl::Status GlooBackend::Run(const backends::Lifecycle::OperationScope& scope, GlooBody body) {
  const ScopedSigpipeBlock no_sigpipe;
  return lifecycle_.Run(scope, [&] {
    absl::Status status;
    absl::Status thrown =
        CatchGloo([&] { status = body(mesh_->ForOperation(scope.call.deadline)); });
    if (KindOf(thrown) == ErrorKind::kMismatch) {
      // Gloo has only seen sizes of messages.
      const backends::CallDescription call(scope.call);
      thrown =
          WithOperation(Annotate(thrown, call.ToString()), call.OperationOf(mesh_->peers().rank()));
    }
    status.Update(thrown);
    return status;
  });
}

absl::Status GlooBackend::RunCompared(const CallContext& context, Algorithm algorithm) {
  return Run({context, others_}, [&](const auto& gloo) -> absl::Status {
    if (mismatch_check_ == MismatchCheck::kOn) {
      SYNCLINE_RETURN_IF_ERROR(check_.Compare(gloo, context));
    }
    GlooTransport transport(gloo, kCollectiveSlot + static_cast<uint32_t>(context.sequence));
    backends::MessageCollectives collectives(transport, kMessageThresholds, scratch_);
    return algorithm(collectives);
  });
}

void GlooBackend::HandlePeerGone() {
  if (!mesh_->lost().empty()) {
    lifecycle_.ReportIfIdle();
  } else if (mesh_->left().size() == others_.size()) {
    // Gloo ends a receive from one rank with its connection, but not one from any rank.
    p2p_.FailAnySourceReceives();
  }
}

}  // namespace syncline::gloo_backend
