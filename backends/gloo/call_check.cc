#include "backends/gloo/call_check.h"

#include <cstddef>

#include "backends/common/call_comparison.h"
#include "backends/gloo/slots.h"
#include "backends/gloo/transfers.h"
#include "backends/gloo/transport.h"
#include "syncline/status.h"

namespace syncline::gloo_backend {

CallCheck::CallCheck(Mesh& mesh, int rank, int size) : rank_(rank), size_(size) {
  for (int k = 0; k < backends::FingerprintExchange::Rounds(size); ++k) {
    auto round = std::make_unique<Round>();
    round->out = &mesh.MakePersistentBuffer(&round->sent, sizeof(backends::FingerprintRecord));
    round->in = &mesh.MakePersistentBuffer(&round->received, sizeof(backends::FingerprintRecord));
    rounds_.push_back(std::move(round));
  }
}

void CallCheck::Start() {
  for (size_t k = 0; k < rounds_.size(); ++k) PostReceive(k);
}

absl::Status CallCheck::Compare(const std::shared_ptr<gloo::Context>& gloo,
                                const CallContext& context) {
  GlooTransport transport(gloo, kCallSlot);
  return backends::CompareCalls(transport, context, [&](backends::FingerprintExchange& exchange) {
    return RunRounds(exchange, context.deadline);
  });
}

void CallCheck::PostReceive(int round) {
  const int from = backends::FingerprintExchange::From(round, rank_, size_);
  rounds_[round]->posted =
      CatchGloo([&] { rounds_[round]->in->Receive(from, kFingerprintSlot + round); });
}

absl::Status CallCheck::RunRounds(backends::FingerprintExchange& exchange,
                                  const Deadline& deadline) {
  for (int k = 0; k < exchange.rounds(); ++k) {
    Round& round = *rounds_[k];
    SYNCLINE_RETURN_IF_ERROR(round.posted);
    round.sent = exchange.record();
    round.out->Send(exchange.to(k), kFingerprintSlot + k);
    round.in->AwaitReceived(deadline);
    exchange.Merge(round.received);
    // The record has been merged, so its memory can take that of the next operation, which a fast
    // peer may send at once.
    PostReceive(k);
  }
  // Gloo may still read `sent`, which the next operation overwrites.
  for (const auto& round : rounds_) round->out->AwaitSent(deadline);
  return absl::OkStatus();
}

}  // namespace syncline::gloo_backend
