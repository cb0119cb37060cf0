#include "backends/common/call_comparison.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/common/call_description.h"
#include "core/base/rank_ranges.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

// For all_to_all: whether every other rank sends the number of elements that this rank expects. The
// ranks exchange these numbers, so all of them must be known to be in this call.
absl::StatusOr<bool> SplitsFit(MessageTransport& transport, const CallDescription& call) {
  struct Memory {
    CallDescription::Counts announced, sent;
  };
  const auto memory = std::make_shared<Memory>();
  CallDescription::Counts& announced = memory->announced;
  announced.resize(transport.size());
  memory->sent = call.counts;
  const auto messages = transport.NewMessages();
  messages->Keep(memory);
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    messages->Receive(peer, &announced[peer], sizeof(int64_t));
    messages->Send(peer, &memory->sent[peer], sizeof(int64_t));
  }
  SYNCLINE_RETURN_IF_ERROR(messages->Wait());
  announced[transport.rank()] = call.expected[transport.rank()];
  return announced == call.expected;
}

}  // namespace

absl::Status CompareCalls(MessageTransport& messages, const CallContext& context,
                          RunRounds run_rounds) {
  const FingerprintRecord own = FingerprintRecord::Of(context);
  FingerprintExchange exchange(own, messages.rank(), messages.size());
  SYNCLINE_RETURN_IF_ERROR(run_rounds(exchange));
  if (exchange.agreed()) {
    // Another operation has no sizes that need to fit, whatever a peer says of them.
    const bool has_splits = context.collective->kind == OpKind::kAllToAll;
    if (!has_splits || exchange.all_even()) return absl::OkStatus();
    // The operations are the same, but the sizes of all_to_all are uneven and may not fit. Only the
    // two ranks of a pair can tell, so a second exchange spreads what they find.
    exchange = FingerprintExchange(own, messages.rank(), messages.size());
    SYNCLINE_ASSIGN_OR_RETURN(const bool fit, SplitsFit(messages, CallDescription(context)));
    if (!fit) exchange.Reject();
    SYNCLINE_RETURN_IF_ERROR(run_rounds(exchange));
    if (exchange.agreed()) return absl::OkStatus();
  }
  return GatherCalls(messages, context);
}

absl::Status GatherCalls(MessageTransport& transport, const CallContext& context) {
  const int size = transport.size();
  // Of each rank. Messages are as long as their receives.
  const auto memory = std::make_shared<std::vector<std::vector<int64_t>>>(size);
  std::vector<std::vector<int64_t>>& words = *memory;
  std::vector<int64_t>& own = words[transport.rank()];
  own = CallDescription(context).ToWords();
  own.resize(CallDescription::MaxWords(size));
  const auto messages = transport.NewMessages();
  messages->Keep(memory);
  for (int peer = 0; peer < size; ++peer) {
    if (peer == transport.rank()) continue;
    words[peer].resize(own.size());
    messages->Receive(peer, words[peer].data(), words[peer].size() * sizeof(int64_t));
    messages->Send(peer, own.data(), own.size() * sizeof(int64_t));
  }
  SYNCLINE_RETURN_IF_ERROR(messages->Wait());
  std::vector<CallDescription> calls;
  for (int rank = 0; rank < size; ++rank) {
    absl::StatusOr<CallDescription> call = CallDescription::FromWords(words[rank]);
    if (!call.ok()) return WithRanks(call.status(), {rank});
    // Each list has a number for each rank, or is empty.
    if (!call->counts.empty() && call->counts.size() != static_cast<size_t>(size)) {
      return WithRanks(BackendError("a rank's description of its call is of another group"),
                       {rank});
    }
    calls.push_back(*std::move(call));
  }
  std::vector<const CallDescription*> by_rank;
  for (const CallDescription& call : calls) by_rank.push_back(&call);
  SYNCLINE_RETURN_IF_ERROR(CheckCollective(by_rank));
  // The fingerprints differed, so the ranks must fail even if the full forms do not show why.
  return MismatchError("ranks made different calls");
}

absl::Status CheckAllCompareOrNone(absl::Span<const MismatchCheck> of_ranks) {
  std::vector<int> check, do_not;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    (of_ranks[rank] == MismatchCheck::kOn ? check : do_not).push_back(static_cast<int>(rank));
  }
  if (check.empty() || do_not.empty()) return absl::OkStatus();
  const absl::Status mismatch = MismatchError(
      absl::StrCat("ranks must all compare their calls before they move data, or none of them: ",
                   base::NameRanks(check), " would, ", base::NameRanks(do_not),
                   " would not; set SYNCLINE_DEBUG to the same value on all ranks"));
  check.insert(check.end(), do_not.begin(), do_not.end());
  return WithRanks(mismatch, std::move(check));
}

}  // namespace syncline::backends
