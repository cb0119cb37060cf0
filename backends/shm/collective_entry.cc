#include "backends/shm/collective_entry.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"
#include "backends/common/call_fingerprint.h"
#include "backends/shm/byte_range.h"
#include "syncline/check.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::shm {
namespace {

// The largest number of elements that this rank sends to another, or expects. Its complement, which
// is negative, if not all numbers are equal.
int64_t SplitsOf(const Collective& call) {
  int64_t largest = call.inputs[0].numel();
  if (call.has_equal_parts && call.outputs[0].numel() == largest) return largest;
  bool is_even = true;
  for (const auto& list : {call.inputs, call.outputs}) {
    for (const Tensor& tensor : list) {
      if (tensor.numel() == largest) continue;
      is_even = false;
      largest = std::max(largest, tensor.numel());
    }
  }
  return is_even ? largest : ~largest;
}

int64_t SplitsIn(const char* inline_data) {
  int64_t splits;
  std::memcpy(&splits, inline_data, sizeof(splits));
  return splits;
}

int64_t Largest(int64_t splits) { return splits < 0 ? ~splits : splits; }

}  // namespace

absl::Status CollectiveEntry::TakeFrom(int rank, const backends::CallFingerprint& own) {
  ring_.FetchFrom(rank, has_two_lines_);
  context_.takes_from_one = true;
  SYNCLINE_ASSIGN_OR_RETURN(const bool agrees, ring_.AwaitEntry(rank, own, context_));
  if (ABSL_PREDICT_TRUE(agrees)) {
    ring_.NoteAgreement();
    return absl::OkStatus();
  }
  return group_.failure_cell().Fail(ring_.MismatchError(context_.number, context_.Describe(), rank,
                                                        context_.call, EntryRing::kQuotingTimeout));
}

absl::Status CollectiveEntry::Meet(const backends::CallFingerprint& own) {
  int differs = -1;
  for (int r = 0; r < layout_.size(); ++r) {
    if (r == group_.rank()) continue;
    SYNCLINE_ASSIGN_OR_RETURN(const bool agrees, ring_.AwaitEntry(r, own, context_));
    if (!agrees) differs = r;
  }
  return differs < 0 ? ring_.SettleAll(context_.call) : FailWithMismatch(differs);
}

int64_t CollectiveEntry::StageSplits() {
  const int64_t splits = SplitsOf(*context_.call.collective);
  std::memcpy(inline_data_, &splits, sizeof(splits));
  return Largest(splits);
}

int64_t CollectiveEntry::LargestBlockOf(int rank) const {
  return Largest(SplitsIn(InlineDataOf(rank)));
}

bool CollectiveEntry::HasEvenSplits() const {
  const int64_t own = SplitsIn(inline_data_);
  for (int r = 0; r < layout_.size(); ++r) {
    if (SplitsIn(InlineDataOf(r)) != own) return false;
  }
  return own >= 0;
}

absl::StatusOr<int64_t> CollectiveEntry::CheckSplits() {
  const int64_t own = SplitsIn(inline_data_);
  int64_t largest = Largest(own);
  bool all_even = own >= 0;
  for (int r = 0; r < layout_.size(); ++r) {
    if (r == group_.rank()) continue;
    const int64_t splits = SplitsIn(InlineDataOf(r));
    if (splits == own) continue;
    all_even = false;
    largest = std::max(largest, Largest(splits));
  }
  // All blocks of all ranks have one size: nothing can be unlike what is expected. Nor is it in a
  // step of another call, whose ranks have compared what they send.
  if (all_even || context_.call.step_of != nullptr) return largest;
  // Otherwise the calls in full tell, at the price of another exchange.
  PublishCall();
  for (int r = 0; r < layout_.size(); ++r) {
    SYNCLINE_RETURN_IF_ERROR(
        group_.waiter().Await(layout_.region(r).collective_event, r, context_,
                              [&] { return ring_.HasPublishedCall(r, context_.number); }));
  }
  const absl::Status status = CheckCalls();
  if (!status.ok()) return group_.failure_cell().Fail(status);
  return largest;
}

void CollectiveEntry::PublishCall() {
  const int rank = group_.rank();
  const std::vector<int64_t> words = context_.Describe().ToWords();
  std::copy(words.begin(), words.end(), layout_.full_call(rank));
  // Pairs with the acquire load in EntryRing::HasPublishedCall.
  layout_.region(rank).full_call_number.store(context_.number, std::memory_order_release);
  group_.waiter().Notify(layout_.region(rank).collective_event);
}

absl::Status CollectiveEntry::CheckCalls() const {
  std::vector<backends::CallDescription> calls;
  for (int r = 0; r < layout_.size(); ++r) {
    SYNCLINE_ASSIGN_OR_RETURN(backends::CallDescription call, ring_.CallOf(r, context_.number));
    const auto size = static_cast<size_t>(layout_.size());
    if (call.kind == OpKind::kAllToAll &&
        (call.counts.size() != size || call.expected.size() != size)) {
      return WithRanks(
          BackendError(absl::StrCat(group_.peers().Describe(r),
                                    " has published an all_to_all of another number of ranks")),
          {group_.peers().NumberOf(r)});
    }
    calls.push_back(std::move(call));
  }
  std::vector<const backends::CallDescription*> pointers;
  for (const backends::CallDescription& call : calls) pointers.push_back(&call);
  return backends::CheckCollective(pointers);
}

absl::Status CollectiveEntry::FailWithMismatch(int rank) {
  const auto from_entries = [&] {
    return ring_.MismatchError(context_.number, context_.Describe(), rank, context_.call,
                               absl::ZeroDuration());
  };
  // The call of which this is a step may be of more ranks than there is room to describe.
  if (context_.call.step_of != nullptr) return group_.failure_cell().Fail(from_entries());
  PublishCall();
  // The user's deadline must not turn a mismatch into a timeout.
  const Deadline quoting(EntryRing::kQuotingTimeout), never(absl::InfiniteDuration());
  const WaitContext context = {context_.call, never, context_.number};
  bool all_have = true;
  for (int r = 0; r < layout_.size(); ++r) {
    // The entries of the others show all of their calls.
    if (!SlotOf(r).meets()) continue;
    const auto has_published = [&] { return ring_.HasPublishedCall(r, context_.number); };
    SYNCLINE_RETURN_IF_ERROR(
        group_.waiter().Await(layout_.region(r).collective_event, r, context,
                              [&] { return has_published() || quoting.Expired(); }));
    all_have = all_have && has_published();
  }
  const absl::Status status = all_have ? CheckCalls() : absl::OkStatus();
  if (!status.ok()) return group_.failure_cell().Fail(status);
  // A rank has stopped after it wrote its slot. The fingerprint there shows what it called, except
  // sizes that differ from rank to rank.
  return group_.failure_cell().Fail(from_entries());
}

}  // namespace syncline::shm
