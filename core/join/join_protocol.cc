#include "core/join/join_protocol.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/rank_ranges.h"
#include "core/join/join_generations.h"
#include "core/join/join_record.h"
#include "core/store/error_text.h"
#include "syncline/check.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/log.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

using Role = StoreConfig::Role;

// How often a process that waits for others logs that it does.
constexpr absl::Duration kLogInterval = absl::Seconds(10);

// In the store: the size of the worlds that join through it now.
constexpr absl::string_view kSize = "size";
// In the part of one size: the process that holds a given rank.
std::string ReservationKey(int rank) { return absl::StrCat("reserved/", rank); }
// In the part of one generation: how many processes have taken a slot for good, and which of them
// know that the generation has failed.
constexpr absl::string_view kPresent = "present";
std::string AcknowledgedKey(absl::string_view slot) { return absl::StrCat("acknowledged/", slot); }

std::shared_ptr<Store> PartOfSize(absl::string_view size, const std::shared_ptr<Store>& store) {
  return std::make_shared<PrefixStore>(absl::StrCat("size ", size), store);
}

std::vector<std::string> SlotKeys(int size) {
  std::vector<std::string> keys;
  for (int slot = 1; slot <= size; ++slot) keys.push_back(SlotKey(slot));
  return keys;
}

std::string Milliseconds(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(1)));
}

// The ranks that are not among those of `records`; empty where ranks are to be assigned.
std::vector<int> AbsentRanks(const std::vector<JoinRecord>& records, int size) {
  std::set<int> present;
  for (const JoinRecord& record : records) present.insert(record.rank);
  std::vector<int> absent;
  if (present.count(-1) != 0) return absent;
  for (int rank = 0; rank < size; ++rank) {
    if (present.count(rank) == 0) absent.push_back(rank);
  }
  return absent;
}

// "rank 1, 2 of 3" or, where ranks are to be assigned, "2 of 3 processes".
std::string DescribeMissing(const std::vector<JoinRecord>& records, int size) {
  const std::vector<int> absent = AbsentRanks(records, size);
  if (!absent.empty()) return absl::StrCat("rank ", base::RankRanges(absent), " of ", size);
  return absl::StrCat(size - static_cast<int>(records.size()), " of ", size, " processes");
}

// Whether no process with a lower slot is there. That one logs for all.
bool IsLowestPresent(Store& generation, int slot) {
  const auto keys = generation.Keys(kSlotPrefix);
  return !keys.ok() || std::none_of(keys->begin(), keys->end(), [slot](const std::string& key) {
    int other = slot;
    return absl::SimpleAtoi(key.substr(kSlotPrefix.size()), &other) && other < slot;
  });
}

// Logs who is missing. One of the processes that wait does so for all of them.
void LogStillJoining(Store& generation, int slot, int size, absl::Duration waited) {
  absl::Status answers = generation.Wait({SlotKey(slot)}, kStoreProbeTimeout);
  if (answers.ok() && !IsLowestPresent(generation, slot)) return;
  const auto records = answers.ok() ? RecordsSoFar(generation) : answers;
  Log(LogLevel::kWarning,
      absl::StrCat("still joining after ", Milliseconds(waited), "; ",
                   records.ok() ? absl::StrCat("missing: ", DescribeMissing(*records, size),
                                               " (store ", WithoutPrefixes(generation), ")")
                                : std::string(records.status().message())));
}

absl::Status SizeMismatch(int size, absl::string_view other) {
  return ArgumentError(absl::StrCat("world_size is ", size, " for this process (",
                                    base::ThisPeer().ToString(), "), but another has said ", other,
                                    ": start all ranks with the same world_size"));
}

// Whether a world of `size` has been joined, and left by all.
absl::StatusOr<bool> IsOver(const std::shared_ptr<Store>& store, absl::string_view size) {
  int number = 0;
  if (!absl::SimpleAtoi(size, &number)) return false;
  return JoinGenerations(PartOfSize(size, store), number).AreOver();
}

// Agrees with the other ranks on the size. A world of another size is replaced once it is over.
//
// Nobody may join a world that is being replaced. So this process looks once more whether the old
// world is over after it has replaced the size, and puts the size back if it is not; and a process
// that takes a slot reads the size afterwards (TakeSlot below). Of two such processes at least one
// sees what the other has written.
absl::Status AgreeOnSize(const std::shared_ptr<Store>& store, int size) {
  const std::string text = absl::StrCat(size);
  SYNCLINE_ASSIGN_OR_RETURN(auto agreed, store->CompareSet(kSize, "", text));
  if (agreed.value == text) return absl::OkStatus();
  const std::string other = agreed.value;
  SYNCLINE_ASSIGN_OR_RETURN(bool is_over, IsOver(store, other));
  if (!is_over) return SizeMismatch(size, other);
  SYNCLINE_ASSIGN_OR_RETURN(agreed, store->CompareSet(kSize, other, text));
  if (agreed.value != text) return SizeMismatch(size, agreed.value);
  SYNCLINE_ASSIGN_OR_RETURN(is_over, IsOver(store, other));
  if (is_over) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(store->CompareSet(kSize, text, other).status());
  return SizeMismatch(size, other);
}

// Reserves a rank that is given, so that no other process can have it.
absl::Status ReserveRank(Store& of_size, int rank, const Peer& self) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto reserved,
                            of_size.CompareSet(ReservationKey(rank), "", self.Serialize()));
  if (reserved.swapped) return absl::OkStatus();
  const auto other = Peer::Parse(reserved.value);
  return ArgumentError(absl::StrCat(
      "rank ", rank, " is taken by ", other.ok() ? other->ToString() : "another process",
      ": give each process its own rank, or use a new store if that process is gone"));
}

// Takes a slot in a world of `size`, if that is still the size of `store`. `of_size` is its part.
absl::StatusOr<JoinGenerations::Slot> TakeSlot(Store& store, const std::shared_ptr<Store>& of_size,
                                               int size, const JoinRecord& self) {
  SYNCLINE_ASSIGN_OR_RETURN(JoinGenerations::Slot slot,
                            JoinGenerations(of_size, size).TakeSlot(self));
  // After the slot was taken, not before: see AgreeOnSize.
  SYNCLINE_ASSIGN_OR_RETURN(const std::string agreed, store.Get(kSize, kStoreProbeTimeout));
  if (agreed == absl::StrCat(size)) return slot;
  SYNCLINE_RETURN_IF_ERROR(slot.generation->Delete(SlotKey(slot.number)).status());
  return SizeMismatch(size, agreed);
}

// Proposes an outcome. The first proposal counts, for all; returns the status that it means.
absl::Status Decide(Store& generation, absl::string_view outcome, int size) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto decided, generation.CompareSet(kOutcome, "", outcome));
  return ParseOutcome(decided.value, size);
}

// A process that leaves early ends the generation for all: they would wait for it in vain. Returns
// OK if the generation is complete all the same.
absl::Status FailInterrupted(Store& generation, int size, const absl::Status& interruption) {
  const Uninterruptible deciding;
  const absl::Status failure =
      BackendError(absl::StrCat("a process (", base::ThisPeer().ToString(), ") was ",
                                interruption.message(), " while it waited for others to join"));
  const absl::Status decided = Decide(generation, store::SerializeError(failure), size);
  return decided.ok() ? decided : interruption;
}

// The deadline has passed: proposes a failure that says who has come and who has not. `slot` is
// this process's own. An error if the store does not answer.
absl::Status FailLate(Store& generation, int slot, int size, absl::Duration waited) {
  // Its own slot is there, so a store that is alive answers at once. A store that is silent would
  // hold up each of the requests below for its full timeout.
  absl::Status answers = generation.Wait({SlotKey(slot)}, kStoreProbeTimeout);
  const auto records = answers.ok() ? RecordsSoFar(generation) : answers;
  if (!records.ok()) {
    return Annotate(records.status(),
                    absl::StrCat("not all ranks joined within ", Milliseconds(waited)));
  }
  const absl::Status late =
      TimeoutError(absl::StrCat(DescribeMissing(*records, size), " did not join within ",
                                Milliseconds(waited), "; present: ", Describe(*records),
                                ". Were all ranks started, with the same world_size and store (",
                                WithoutPrefixes(generation), ")?"));
  return Decide(generation, store::SerializeError(WithRanks(late, AbsentRanks(*records, size))),
                size);
}

// Waits for the outcome. At the deadline this process decides that the generation has failed.
absl::Status AwaitOutcome(Store& generation, int slot, int size, const Deadline& deadline) {
  while (true) {
    const auto outcome = generation.Get(kOutcome, std::min(deadline.Remaining(), kLogInterval));
    if (outcome.ok()) return ParseOutcome(*outcome, size);
    if (IsInterrupted(outcome.status())) return FailInterrupted(generation, size, outcome.status());
    if (!absl::IsDeadlineExceeded(outcome.status())) return outcome.status();
    const absl::Duration waited = deadline.timeout() - deadline.Remaining();
    if (deadline.Expired()) return FailLate(generation, slot, size, waited);
    LogStillJoining(generation, slot, size, waited);
  }
}

// Returns once all slots are taken. This process has taken `slot`.
absl::Status AwaitAll(Store& generation, int slot, int size, const Deadline& deadline) {
  // The outcome may have been decided between TakeSlot's look at it and the taking of the slot.
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_decided, generation.Check({std::string(kOutcome)}));
  if (is_decided) {
    return Annotate(AwaitOutcome(generation, slot, size, deadline),
                    "this rank came too late, the others gave up");
  }
  // The count is of processes that hold a slot and have seen the outcome open. One that dies after
  // this stays counted: the generation completes, and its group finds out that the rank is dead.
  SYNCLINE_ASSIGN_OR_RETURN(const int64_t present, generation.Add(kPresent, 1));
  if (present == size) return Decide(generation, kComplete, size);
  return AwaitOutcome(generation, slot, size, deadline);
}

// After a failure: the host of the store takes the store away only when the others know why.
void AcknowledgeFailure(Store& generation, int slot, Role role) {
  generation.Set(AcknowledgedKey(absl::StrCat(slot)), "").IgnoreError();
  if (role != Role::kServer) return;
  const auto keys = generation.Keys(kSlotPrefix);
  if (!keys.ok()) return;
  std::vector<std::string> acknowledged;
  for (const std::string& key : *keys) {
    acknowledged.push_back(AcknowledgedKey(key.substr(kSlotPrefix.size())));
  }
  generation.Wait(acknowledged, kStoreProbeTimeout).IgnoreError();
}

}  // namespace

absl::StatusOr<JoinProtocol> JoinProtocol::Join(const std::shared_ptr<Store>& store,
                                                const Request& request, const Deadline& deadline) {
  SYNCLINE_DCHECK(request.size >= 1 && request.rank >= -1 && request.rank < request.size);
  SYNCLINE_ASSIGN_OR_RETURN(Peer peer, base::IdentifyThisProcess());
  const JoinRecord self = {request.rank, request.role, std::move(peer), request.backend};
  SYNCLINE_RETURN_IF_ERROR(AgreeOnSize(store, request.size));
  JoinProtocol joined;
  joined.of_size_ = PartOfSize(absl::StrCat(request.size), store);
  if (request.rank >= 0) {
    SYNCLINE_RETURN_IF_ERROR(ReserveRank(*joined.of_size_, request.rank, self.peer));
    joined.reservation_ = ReservationKey(request.rank);
  }
  auto slot = TakeSlot(*store, joined.of_size_, request.size, self);
  if (!slot.ok()) {
    const Uninterruptible leaving;
    if (!joined.reservation_.empty() &&
        joined.of_size_->Wait({joined.reservation_}, kStoreProbeTimeout).ok()) {
      joined.of_size_->Delete(joined.reservation_).status().IgnoreError();
    }
    return slot.status();
  }
  joined.generation_ = slot->generation;
  joined.slot_ = slot->number;
  joined.role_ = request.role;
  absl::Status status = AwaitAll(*joined.generation_, joined.slot_, request.size, deadline);
  if (status.ok()) status = joined.ReadRecords(request.size, deadline);
  if (status.ok()) return joined;
  joined.LeaveAfterFailure();
  if (slot->previous_failure.ok() || KindOf(status) != ErrorKind::kTimeout) return status;
  return WithOriginOf(
      TimeoutError(absl::StrCat(status.message(), " The attempt before had failed, too: ",
                                slot->previous_failure.message())),
      status);
}

absl::Status JoinProtocol::ReadRecords(int size, const Deadline& deadline) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto texts,
                            generation_->MultiGet(SlotKeys(size), deadline.Remaining()));
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<JoinRecord> records, ParseRecords(texts));
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<int> ranks, AssignRanks(records));
  SYNCLINE_RETURN_IF_ERROR(CheckSameBackend(records, ranks));
  SYNCLINE_DCHECK(slot_ >= 1 && slot_ <= size);
  rank_ = ranks[slot_ - 1];
  peers_.resize(size);
  for (size_t i = 0; i < records.size(); ++i) peers_[ranks[i]] = records[i].peer;
  return absl::OkStatus();
}

absl::Status JoinProtocol::Leave(const Deadline& deadline) {
  // Probes the store first: one that is silent would hold up the writes below for its full timeout.
  SYNCLINE_RETURN_IF_ERROR(
      generation_->Wait({SlotKey(slot_)}, std::min(deadline.Remaining(), kStoreProbeTimeout)));
  // The reservation goes first: whoever sees the slot free can reserve the rank.
  if (!reservation_.empty()) SYNCLINE_RETURN_IF_ERROR(of_size_->Delete(reservation_).status());
  return generation_->Set(LeftKey(slot_), "");
}

void JoinProtocol::LeaveAfterFailure() {
  const Uninterruptible leaving;
  // If it is the store that has failed, there is nobody to wait for.
  if (Leave(Deadline(kStoreProbeTimeout)).ok()) AcknowledgeFailure(*generation_, slot_, role_);
}

}  // namespace syncline::join
