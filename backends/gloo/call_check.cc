#include "backends/gloo/call_check.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "backends/common/call_description.h"
#include "backends/gloo/slots.h"
#include "backends/gloo/transfers.h"
#include "backends/gloo/transport.h"
#include "syncline/status.h"

namespace syncline::gloo_backend {
namespace {

// For all_to_all: whether every other rank sends the number of elements that this rank expects. The
// ranks exchange these numbers, so all of them must be known to be in this call.
bool SplitsFit(gloo::Context& gloo, const backends::CallDescription& call) {
  backends::CallDescription::Counts announced(gloo.size);
  Transfers transfers(gloo, kCollectiveSlot + static_cast<uint32_t>(call.sequence));
  for (int peer = 0; peer < gloo.size; ++peer) {
    if (peer == gloo.rank) continue;
    transfers.Receive(peer, &announced[peer], sizeof(int64_t));
    transfers.Send(peer, &call.counts[peer], sizeof(int64_t));
  }
  transfers.Wait();
  announced[gloo.rank] = call.expected[gloo.rank];
  return announced == call.expected;
}

}  // namespace

absl::Status GatherCalls(gloo::Context& gloo, const CallContext& context) {
  const std::vector<int64_t> own = backends::CallDescription(context).ToWords();
  std::vector<std::vector<int64_t>> words(gloo.size);
  Transfers transfers(gloo, kCallSlot);
  for (int peer = 0; peer < gloo.size; ++peer) {
    if (peer == gloo.rank) continue;
    words[peer].resize(backends::CallDescription::MaxWords(gloo.size));
    transfers.Receive(peer, words[peer].data(), words[peer].size() * sizeof(int64_t));
    transfers.Send(peer, own.data(), own.size() * sizeof(int64_t));
  }
  transfers.Wait();
  std::vector<backends::CallDescription> calls;
  for (int rank = 0; rank < gloo.size; ++rank) {
    SYNCLINE_ASSIGN_OR_RETURN(
        backends::CallDescription theirs,
        backends::CallDescription::FromWords(rank == gloo.rank ? own : words[rank]));
    calls.push_back(std::move(theirs));
  }
  std::vector<const backends::CallDescription*> by_rank;
  for (const backends::CallDescription& each : calls) by_rank.push_back(&each);
  SYNCLINE_RETURN_IF_ERROR(backends::CheckCollective(by_rank));
  // The fingerprints differed, so the ranks must fail even if the full forms do not show why.
  return MismatchError("ranks made different calls");
}

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

absl::Status CallCheck::Compare(gloo::Context& gloo, const CallContext& context) {
  const backends::FingerprintRecord own = backends::FingerprintRecord::Of(context);
  backends::FingerprintExchange exchange(own, rank_, size_);
  SYNCLINE_RETURN_IF_ERROR(RunRounds(exchange, context.deadline));
  if (exchange.agreed()) {
    if (exchange.all_even()) return absl::OkStatus();
    // The operations are the same, but the sizes of all_to_all are uneven and may not fit. Only the
    // two ranks of a pair can tell, so a second exchange spreads what they find.
    exchange = backends::FingerprintExchange(own, rank_, size_);
    if (!SplitsFit(gloo, backends::CallDescription(context))) exchange.Reject();
    SYNCLINE_RETURN_IF_ERROR(RunRounds(exchange, context.deadline));
    if (exchange.agreed()) return absl::OkStatus();
  }
  return GatherCalls(gloo, context);
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
