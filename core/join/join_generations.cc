#include "core/join/join_generations.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/store/error_text.h"
#include "syncline/check.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

// In the part of one size: the number of the first generation that matters.
constexpr absl::string_view kFirst = "first";
// In the part of one generation: where a process without a rank begins to look for a slot, so that
// slots are taken in the order of joining. Only the order depends on it, so it may have gaps.
constexpr absl::string_view kNextSlot = "next slot";
constexpr absl::string_view kLeftPrefix = "left/";

// What was decided about a generation; empty if nothing was.
absl::StatusOr<std::string> OutcomeOf(Store& generation) {
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_decided, generation.Check({std::string(kOutcome)}));
  if (!is_decided) return std::string();
  return generation.Get(kOutcome, kStoreProbeTimeout);
}

absl::StatusOr<std::set<int>> SlotsLeft(Store& generation) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, generation.Keys(kLeftPrefix));
  std::set<int> slots;
  for (const std::string& key : keys) {
    int slot = 0;
    if (absl::SimpleAtoi(key.substr(kLeftPrefix.size()), &slot)) slots.insert(slot);
  }
  return slots;
}

}  // namespace

std::string SlotKey(int slot) { return absl::StrCat(kSlotPrefix, slot); }
std::string LeftKey(int slot) { return absl::StrCat(kLeftPrefix, slot); }

absl::Status ParseOutcome(absl::string_view outcome, int size) {
  if (outcome == kComplete) return absl::OkStatus();
  absl::optional<absl::Status> error = store::ParseError(outcome, size);
  if (error.has_value()) return *std::move(error);
  return StoreError(absl::StrCat("the outcome of joining is '", outcome,
                                 "', which is not understood: do two jobs, or two versions of ",
                                 "Syncline, share a store?"));
}

absl::StatusOr<std::vector<JoinRecord>> RecordsSoFar(Store& generation) {
  absl::StatusOr<std::vector<std::string>> texts;
  // A process that is refused takes its record back. If that happens between the two calls, the
  // second one times out, and this tries again.
  for (int attempt = 0; attempt < 3; ++attempt) {
    SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, generation.Keys(kSlotPrefix));
    texts = generation.MultiGet(keys, absl::ZeroDuration());
    if (texts.ok() || KindOf(texts.status()) != ErrorKind::kTimeout) break;
  }
  SYNCLINE_RETURN_IF_ERROR(texts.status());
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<JoinRecord> records, ParseRecords(*texts));
  std::sort(records.begin(), records.end(),
            [](const JoinRecord& a, const JoinRecord& b) { return a.rank < b.rank; });
  return records;
}

absl::StatusOr<JoinGenerations::Slot> JoinGenerations::TakeSlot(const JoinRecord& self) {
  SYNCLINE_ASSIGN_OR_RETURN(int64_t number, First());
  std::optional<Slots> free;  // All slots, if nobody of an earlier generation is still there.
  absl::Status failure;
  for (;; ++number) {
    const std::shared_ptr<Store> generation = Generation(number);
    SYNCLINE_ASSIGN_OR_RETURN(const std::string outcome, OutcomeOf(*generation));
    if (outcome.empty()) {
      SYNCLINE_ASSIGN_OR_RETURN(const int slot, TakeSlotIn(*generation, free, self));
      if (slot == 0) return TooManyProcesses(*generation);
      return Slot{generation, slot, failure};
    }
    failure = ParseOutcome(outcome, size_);
    if (outcome == kComplete) {
      SYNCLINE_ASSIGN_OR_RETURN(free, SlotsLeft(*generation));
      if (free->empty()) return TooManyProcesses(*generation);
      if (static_cast<int>(free->size()) == size_) free.reset();
    }
    // A failed generation frees no slot of its own: it passes on those that the last complete one
    // had freed. So only a generation that all have left can be retired.
    if (!free.has_value()) SYNCLINE_RETURN_IF_ERROR(Retire(number));
  }
}

absl::StatusOr<bool> JoinGenerations::AreOver() {
  SYNCLINE_ASSIGN_OR_RETURN(int64_t number, First());
  for (;; ++number) {
    const std::shared_ptr<Store> generation = Generation(number);
    SYNCLINE_ASSIGN_OR_RETURN(const std::string outcome, OutcomeOf(*generation));
    if (outcome.empty()) {
      SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> waiting,
                                generation->Keys(kSlotPrefix));
      return waiting.empty() && number > 1;
    }
    if (outcome != kComplete) continue;
    SYNCLINE_ASSIGN_OR_RETURN(const Slots left, SlotsLeft(*generation));
    if (static_cast<int>(left.size()) < size_) return false;
  }
}

std::shared_ptr<Store> JoinGenerations::Generation(int64_t number) const {
  SYNCLINE_DCHECK(number >= 1);
  return std::make_shared<PrefixStore>(absl::StrCat("generation/", number), store_);
}

absl::StatusOr<int64_t> JoinGenerations::First() {
  SYNCLINE_ASSIGN_OR_RETURN(const auto first, store_->CompareSet(kFirst, "", "1"));
  int64_t number = 0;
  if (absl::SimpleAtoi(first.value, &number) && number >= 1) return number;
  return StoreError(absl::StrCat("'", first.value, "' is not the number of a round: do two jobs, ",
                                 "or two versions of Syncline, share a store?"));
}

absl::Status JoinGenerations::Retire(int64_t number) {
  // Another process may have retired it already, or a later one: then this changes nothing.
  return store_->CompareSet(kFirst, absl::StrCat(number), absl::StrCat(number + 1)).status();
}

absl::StatusOr<int> JoinGenerations::TakeSlotIn(Store& generation, const std::optional<Slots>& free,
                                                const JoinRecord& self) {
  int64_t start = int64_t{self.rank} + 1;
  if (self.rank < 0) {
    SYNCLINE_ASSIGN_OR_RETURN(start, generation.Add(kNextSlot, 1));
  }
  const std::string text = self.Serialize();
  for (int i = 0; i < size_; ++i) {
    const int slot = static_cast<int>((start - 1 + i) % size_) + 1;
    if (free.has_value() && free->count(slot) == 0) continue;
    SYNCLINE_ASSIGN_OR_RETURN(const auto taken, generation.CompareSet(SlotKey(slot), "", text));
    if (taken.swapped) return slot;
  }
  return 0;
}

absl::Status JoinGenerations::TooManyProcesses(Store& generation) const {
  const auto there = RecordsSoFar(generation);
  return ArgumentError(absl::StrCat(
      "more processes than world_size, ", size_, ", have come: this one (",
      base::ThisPeer().ToString(), ") has no place beside ",
      there.ok() && !there->empty() ? absl::StrCat("ranks ", Describe(*there)) : "the others",
      ". Give each job its own address, file or group_name, or use a new store if those are gone"));
}

}  // namespace syncline::join
