#include "backends/tcp/tcp_backend.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "backends/common/call_comparison.h"
#include "backends/common/fingerprint_exchange.h"
#include "backends/tcp/thresholds.h"
#include "syncline/status.h"

namespace syncline::tcp {
absl::StatusOr<std::unique_ptr<TcpBackend>> TcpBackend::Make(const BackendConfig& config,
                                                             OnPeerGone on_peer_gone) {
  SYNCLINE_ASSIGN_OR_RETURN(auto connections, TcpConnections::Connect(config));
  std::unique_ptr<TcpBackend> backend(
      new TcpBackend(std::move(connections), config, std::move(on_peer_gone)));
  SYNCLINE_RETURN_IF_ERROR(backend->Start(config.deadline));
  return backend;
}

TcpBackend::TcpBackend(std::unique_ptr<TcpConnections> connections, const BackendConfig& config,
                       OnPeerGone on_peer_gone)
    : backends::MessageBackend(config.rank, config.size),
      others_(backends::OtherRanks(config.rank, config.size)),
      mismatch_check_(config.mismatch_check),
      on_peer_gone_(std::move(on_peer_gone)),
      connections_(std::move(connections)),
      lifecycle_(*connections_, config.store) {}

TcpBackend::~TcpBackend() { Abort(BackendError("the backend was destroyed")); }

absl::Status TcpBackend::Start(const Deadline& deadline) {
  const absl::Status watched = connections_->Watch([this] { HandlePeerGone(); });
  if (!watched.ok()) {
    Abort(watched);  // The leave message tells the peers why.
    return watched;
  }
  const Collective barrier = Collective::Barrier();
  CallContext connecting;
  connecting.deadline = deadline;
  connecting.collective = &barrier;
  return lifecycle_.Run({connecting, others_, "connecting all ranks"},
                        [&] { return Operation(*this, connecting).CompareCalls(); });
}

// A comparison of the calls is a barrier already.
absl::Status TcpBackend::Barrier(const CallContext& context) {
  return Execute(context, [](Operation& operation) { return operation.CompareCalls(); });
}

absl::Status TcpBackend::Send(const Tensor& tensor, int dst, const CallContext& context) {
  return ExecuteMessage(context, absl::MakeConstSpan(&dst, 1),
                        [&] { return connections_->point_to_point().Send(tensor, context); });
}

absl::StatusOr<int> TcpBackend::Recv(const Tensor& tensor, int src, const CallContext& context) {
  const absl::Span<const int> awaited =
      src == kAnySource ? absl::MakeConstSpan(others_) : absl::MakeConstSpan(&src, 1);
  int sender = src;
  const absl::Status status = ExecuteMessage(context, awaited, [&]() -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(sender, connections_->point_to_point().Recv(tensor, context));
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return sender;
}

absl::Status TcpBackend::Execute(const CallContext& context, Body body,
                                 const AwaitedNow* awaited_now) {
  return lifecycle_.Run({context, others_, {}, awaited_now}, [&] {
    Operation operation(*this, context);
    return OrViolation(body(operation));
  });
}

absl::Status TcpBackend::OrViolation(const absl::Status& status) const {
  if (status.ok() || KindOf(status) != ErrorKind::kNetwork) return status;
  const absl::Status violation = connections_->point_to_point().violation();
  return violation.ok() ? status : violation;
}

TcpBackend::Operation::Operation(TcpBackend& backend, const CallContext& context)
    : connections_(*backend.connections_),
      transport_(TransportUntil(context.deadline)),
      scratch_(backend.scratch_),
      context_(context) {}

TcpTransport TcpBackend::Operation::TransportUntil(const Deadline& deadline) const {
  const backends::PeerTable& peers = connections_.peers();
  return TcpTransport(connections_.collectives(), peers.rank(), peers.size(), deadline);
}

absl::Status TcpBackend::Operation::CompareCalls() {
  const auto run_rounds = [&](backends::FingerprintExchange& exchange) -> absl::Status {
    for (int round = 0; round < exchange.rounds(); ++round) {
      const backends::FingerprintRecord sent = exchange.record();
      backends::FingerprintRecord received;
      const auto messages = transport_.NewMessages();
      messages->Receive(exchange.from(round), &received, sizeof(received));
      messages->Send(exchange.to(round), &sent, sizeof(sent));
      SYNCLINE_RETURN_IF_ERROR(messages->Wait());
      exchange.Merge(received);
    }
    return absl::OkStatus();
  };
  return OnceAllHaveRead(backends::CompareCalls(transport_, context_, run_rounds));
}

absl::Status TcpBackend::Operation::GatherCalls() {
  return OnceAllHaveRead(backends::GatherCalls(transport_, context_));
}

// Whoever returns a mismatch first ends the group, and with it the waits of the others. This rank
// has read all it needs, so what goes wrong here changes nothing.
absl::Status TcpBackend::Operation::OnceAllHaveRead(const absl::Status& compared) {
  if (KindOf(compared) != ErrorKind::kMismatch) return compared;
  const Deadline soon(std::min(context_.deadline.Remaining(), kReadingGrace));
  TcpTransport transport = TransportUntil(soon);
  const char own = 1;
  std::vector<char> theirs(transport.size());
  const auto messages = transport.NewMessages();
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    messages->Receive(peer, &theirs[peer], sizeof(own));
    messages->Send(peer, &own, sizeof(own));
  }
  messages->Wait().IgnoreError();
  return compared;
}

backends::MessageCollectives TcpBackend::Operation::collectives() {
  return backends::MessageCollectives(transport_, kMessageThresholds, scratch_);
}

absl::Status TcpBackend::RunCompared(const CallContext& context, Algorithm algorithm) {
  return Execute(context, [&](Operation& operation) -> absl::Status {
    if (mismatch_check_ == MismatchCheck::kOn) {
      SYNCLINE_RETURN_IF_ERROR(operation.CompareCalls());
    }
    backends::MessageCollectives collectives = operation.collectives();
    return algorithm(collectives);
  });
}

void TcpBackend::HandlePeerGone() {
  if (on_peer_gone_) on_peer_gone_(*this);
  if (!lost().empty()) lifecycle_.ReportIfIdle();
}

}  // namespace syncline::tcp
