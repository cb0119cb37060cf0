#include "backends/shm/collective_entry.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backends/common/call_fingerprint.h"
#include "syncline/check.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::shm {
namespace {

// How long a rank that has found a mismatch waits for the calls in full, to quote them. The others
// have entered, so they answer at once unless they are stopped. The mismatch is certain without.
constexpr absl::Duration kQuotingTimeout = absl::Seconds(1);

// The largest number of elements that this rank sends to another, or expects. Its complement, which
// is negative, if not all numbers are equal.
int64_t SplitsOf(const Collective& call) {
  int64_t largest = call.inputs[0].numel();
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

void CollectiveEntry::Publish(const backends::CallFingerprint& fingerprint) {
  EntrySlot& slot = layout_.entry_slot(group_.rank(), context_.number);
  uint64_t data[kInlineMaxBytes / sizeof(uint64_t)];
  std::memcpy(data, inline_data_, sizeof(data));
  // Keeps the compiler from mixing these loads with the stores: a load may have to wait, and
  // another rank that looks at the line meanwhile would take it away between two stores.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  slot.content.fingerprint = fingerprint;
  std::memcpy(slot.content.inline_data, data, sizeof(data));
  // Pairs with the acquire load in Exchange, on the other ranks: they see the content and all
  // staged data.
  slot.number.store(context_.number, std::memory_order_release);
  group_.waiter().Notify(layout_.region(group_.rank()).collective_event);
}

absl::Status CollectiveEntry::Exchange() {
  const auto own = backends::CallFingerprint::Of(context_.call);
  Publish(own);
  int differs = -1;
  for (int r = 0; r < layout_.size(); ++r) {
    if (r == group_.rank()) continue;
    const EntrySlot& slot = SlotOf(r);
    // Equality is enough: a rank reuses the slot for number + 2, and so not before this rank has
    // entered number + 1.
    SYNCLINE_RETURN_IF_ERROR(group_.waiter().Await(
        layout_.region(r).collective_event, r, context_,
        [&] { return slot.number.load(std::memory_order_acquire) == context_.number; }));
    if (slot.content.fingerprint != own) differs = r;
  }
  return differs < 0 ? absl::OkStatus() : FailWithMismatch(differs);
}

int64_t CollectiveEntry::StageSplits() {
  const int64_t splits = SplitsOf(*context_.call.collective);
  std::memcpy(inline_data_, &splits, sizeof(splits));
  return Largest(splits);
}

int64_t CollectiveEntry::LargestBlockOf(int rank) const {
  return Largest(SplitsIn(SlotOf(rank).content.inline_data));
}

absl::StatusOr<int64_t> CollectiveEntry::CheckSplits() {
  const int64_t own = SplitsIn(inline_data_);
  int64_t largest = Largest(own);
  bool all_even = own >= 0;
  for (int r = 0; r < layout_.size(); ++r) {
    const int64_t splits = SplitsIn(SlotOf(r).content.inline_data);
    if (splits == own) continue;
    all_even = false;
    largest = std::max(largest, Largest(splits));
  }
  // All blocks of all ranks have one size: nothing can be unlike what is expected.
  if (all_even) return largest;
  // Otherwise the calls in full tell, at the price of another exchange.
  PublishCall();
  for (int r = 0; r < layout_.size(); ++r) {
    SYNCLINE_RETURN_IF_ERROR(group_.waiter().Await(layout_.region(r).collective_event, r, context_,
                                                   [&] { return HasPublishedCall(r); }));
  }
  const absl::Status status = CheckCalls();
  if (!status.ok()) return group_.failure_cell().Fail(status);
  return largest;
}

void CollectiveEntry::PublishCall() {
  const int rank = group_.rank();
  const std::vector<int64_t> words = context_.Describe().ToWords();
  std::copy(words.begin(), words.end(), layout_.full_call(rank));
  // Pairs with the acquire load in HasPublishedCall.
  layout_.region(rank).full_call_number.store(context_.number, std::memory_order_release);
  group_.waiter().Notify(layout_.region(rank).collective_event);
}

bool CollectiveEntry::HasPublishedCall(int rank) const {
  return layout_.region(rank).full_call_number.load(std::memory_order_acquire) >= context_.number;
}

absl::StatusOr<backends::CallDescription> CollectiveEntry::CallOf(int rank) const {
  // A copy, which a broken rank cannot change while it is read.
  const int64_t* const words = layout_.full_call(rank);
  const size_t size = static_cast<size_t>(layout_.size());
  absl::StatusOr<backends::CallDescription> call = backends::CallDescription::FromWords(
      std::vector<int64_t>(words, words + backends::CallDescription::MaxWords(layout_.size())));
  if (!call.ok()) return WithRanks(call.status(), {rank});
  if (call->kind == OpKind::kAllToAll &&
      (call->counts.size() != size || call->expected.size() != size)) {
    return WithRanks(
        BackendError(absl::StrCat(group_.peers().Describe(rank),
                                  " has published an all_to_all of another number of ranks")),
        {rank});
  }
  return call;
}

absl::Status CollectiveEntry::CheckCalls() const {
  std::vector<backends::CallDescription> calls;
  for (int r = 0; r < layout_.size(); ++r) {
    SYNCLINE_DCHECK(HasPublishedCall(r));
    SYNCLINE_ASSIGN_OR_RETURN(backends::CallDescription call, CallOf(r));
    calls.push_back(std::move(call));
  }
  std::vector<const backends::CallDescription*> pointers;
  for (const backends::CallDescription& call : calls) pointers.push_back(&call);
  return backends::CheckCollective(pointers);
}

absl::Status CollectiveEntry::FailWithMismatch(int rank) {
  PublishCall();
  // The user's deadline must not turn a mismatch into a timeout.
  const Deadline quoting(kQuotingTimeout), never(absl::InfiniteDuration());
  const WaitContext context = {context_.call, never, context_.number};
  bool all_have = true;
  for (int r = 0; r < layout_.size(); ++r) {
    SYNCLINE_RETURN_IF_ERROR(
        group_.waiter().Await(layout_.region(r).collective_event, r, context,
                              [&] { return HasPublishedCall(r) || quoting.Expired(); }));
    all_have = all_have && HasPublishedCall(r);
  }
  const absl::Status status = all_have ? CheckCalls() : absl::OkStatus();
  if (!status.ok()) return group_.failure_cell().Fail(status);
  // A rank has stopped after it wrote its slot. The fingerprint there shows what it called, except
  // sizes that differ from rank to rank.
  backends::CallDescription theirs(SlotOf(rank).content.fingerprint);
  if (HasPublishedCall(rank)) {
    auto call = CallOf(rank);
    if (call.ok()) theirs = *std::move(call);
  }
  const backends::CallDescription own = context_.Describe();
  const std::string text =
      absl::StrCat("rank ", group_.rank(), " called ", own.ToString(), ", rank ", rank, " called ",
                   theirs.ToString(), ": all ranks must make the same calls in the same order");
  return group_.failure_cell().Fail(
      backends::CallsMismatchError(text, own, group_.rank(), theirs, rank));
}

}  // namespace syncline::shm
