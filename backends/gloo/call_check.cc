#include "backends/gloo/call_check.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "backends/common/call_words.h"
#include "backends/gloo/slots.h"
#include "backends/gloo/transfers.h"
#include "backends/gloo/transport.h"
#include "core/base/status.h"

namespace syncline {
namespace {

// Of all_to_all, once the ranks know that all of them are in this call: whether every other rank
// sends what this one expects.
bool SplitsFit(gloo::Context& gloo, const Call& call) {
  Call::Counts announced(gloo.size);
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

absl::Status CallTheRoll(gloo::Context& gloo, const Call& call) {
  const std::vector<int64_t> own = ToWords(call);
  std::vector<std::vector<int64_t>> words(gloo.size);
  Transfers transfers(gloo, kCallSlot);
  for (int peer = 0; peer < gloo.size; ++peer) {
    if (peer == gloo.rank) continue;
    words[peer].resize(MaxCallWords(gloo.size));
    transfers.Receive(peer, words[peer].data(), words[peer].size() * sizeof(int64_t));
    transfers.Send(peer, own.data(), own.size() * sizeof(int64_t));
  }
  transfers.Wait();
  std::vector<Call> calls;
  for (int rank = 0; rank < gloo.size; ++rank) {
    SYNCLINE_ASSIGN_OR_RETURN(Call theirs, FromWords(rank == gloo.rank ? own : words[rank]));
    calls.push_back(std::move(theirs));
  }
  std::vector<const Call*> by_rank;
  for (const Call& each : calls) by_rank.push_back(&each);
  SYNCLINE_RETURN_IF_ERROR(CheckCollective(by_rank));
  return MismatchError("ranks made different calls");
}

CallCheck::CallCheck(Mesh& mesh, int rank, int size) : rank_(rank), size_(size) {
  for (int k = 0; k < CallAgreement::Rounds(size); ++k) {
    auto round = std::make_unique<Round>();
    round->out = &mesh.MakeStandingBuffer(&round->sent, sizeof(Ballot));
    round->in = &mesh.MakeStandingBuffer(&round->received, sizeof(Ballot));
    rounds_.push_back(std::move(round));
  }
}

void CallCheck::Begin() {
  for (size_t k = 0; k < rounds_.size(); ++k) Post(k);
}

absl::Status CallCheck::Agree(gloo::Context& gloo, const Call& call, const Deadline& deadline) {
  CallAgreement agreement(call, rank_, size_);
  SYNCLINE_RETURN_IF_ERROR(Vote(agreement, deadline));
  if (agreement.agreed()) {
    if (agreement.all_even()) return absl::OkStatus();
    agreement = CallAgreement(call, rank_, size_);
    if (!SplitsFit(gloo, call)) agreement.Object();
    SYNCLINE_RETURN_IF_ERROR(Vote(agreement, deadline));
    if (agreement.agreed()) return absl::OkStatus();
  }
  return CallTheRoll(gloo, call);
}

void CallCheck::Post(int k) {
  rounds_[k]->posted = CatchGloo(
      [&] { rounds_[k]->in->Receive(CallAgreement::From(k, rank_, size_), kBallotSlot + k); });
}

absl::Status CallCheck::Vote(CallAgreement& agreement, const Deadline& deadline) {
  for (int k = 0; k < agreement.rounds(); ++k) {
    Round& round = *rounds_[k];
    SYNCLINE_RETURN_IF_ERROR(round.posted);
    round.sent = agreement.ballot();
    round.out->Send(agreement.to(k), kBallotSlot + k);
    round.in->AwaitReceived(deadline);
    agreement.Merge(round.received);
    Post(k);
  }
  for (const auto& round : rounds_) round->out->AwaitSent(deadline);
  return absl::OkStatus();
}

}  // namespace syncline
