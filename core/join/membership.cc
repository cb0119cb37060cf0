#include "core/join/membership.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/interrupt.h"
#include "core/base/log.h"
#include "core/base/rank_ranges.h"
#include "core/base/status.h"
#include "core/join/membership_rounds.h"
#include "core/store/prefix_store.h"

namespace syncline {
namespace {

using Part = OpenedStore::Part;

// For questions that a store which is alive answers at once.
constexpr absl::Duration kPatienceWithTheStore = absl::Seconds(2);
// How often a process that waits for others says so.
constexpr absl::Duration kReportEvery = absl::Seconds(10);

// In the store: the size of the worlds that meet in it now.
constexpr absl::string_view kSize = "size";
// In the part of one size: who holds a given rank.
std::string ClaimKey(int64_t rank) { return absl::StrCat("claim/", rank); }
// In the part of one round: how many have taken their places for good; which of them know that not
// all did.
constexpr absl::string_view kPresent = "present";
std::string ToldKey(int64_t place) { return absl::StrCat("told/", place); }

// What an outcome begins with if a process has given up the world because it was interrupted.
constexpr absl::string_view kInterrupted = "interrupted: ";

std::shared_ptr<Store> PlacesOf(absl::string_view size, const std::shared_ptr<Store>& store) {
  return std::make_shared<PrefixStore>(absl::StrCat("of ", size), store);
}

std::vector<std::string> ArrivalKeys(int64_t size) {
  std::vector<std::string> keys;
  for (int64_t place = 1; place <= size; ++place) keys.push_back(ArrivalKey(place));
  return keys;
}

absl::StatusOr<std::vector<Arrival>> Parse(const std::vector<std::string>& texts) {
  std::vector<Arrival> arrivals;
  for (const std::string& text : texts) {
    SYNCLINE_ASSIGN_OR_RETURN(Arrival arrival, Arrival::Parse(text));
    arrivals.push_back(std::move(arrival));
  }
  return arrivals;
}

// "rank 1, 2 of 3" or, where ranks are to be assigned, "2 of 3 processes".
std::string Missing(const std::vector<Arrival>& arrivals, int64_t size) {
  std::set<int64_t> present;
  for (const Arrival& arrival : arrivals) present.insert(arrival.rank);
  if (present.count(-1) != 0) {
    return absl::StrCat(size - static_cast<int64_t>(arrivals.size()), " of ", size, " processes");
  }
  std::vector<int64_t> absent;
  for (int64_t rank = 0; rank < size; ++rank) {
    if (present.count(rank) == 0) absent.push_back(rank);
  }
  return absl::StrCat("rank ", RankRanges(absent), " of ", size);
}

// Who has come and who has not, for people; `place` is this process's own. An error if the store
// does not answer.
absl::StatusOr<std::string> Absence(Store& round, int64_t place, int64_t size,
                                    absl::Duration waited) {
  const std::string time = absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1)));
  // A store that is silent would keep other questions waiting for long.
  absl::Status answers = round.Wait({ArrivalKey(place)}, kPatienceWithTheStore);
  const auto arrivals = answers.ok() ? ArrivalsSoFar(round) : answers;
  if (!arrivals.ok()) {
    return Annotate(arrivals.status(), absl::StrCat("not all ranks joined within ", time));
  }
  return absl::StrCat(Missing(*arrivals, size), " did not join within ", time,
                      "; present: ", Describe(*arrivals),
                      ". Were all ranks started, with the same world_size and store (",
                      WithoutPrefixes(round), ")?");
}

// Whether no process with a lower place is there: that one speaks for all.
bool IsSpeaker(Store& round, int64_t place) {
  const auto keys = round.Keys("arrival/");
  return !keys.ok() || std::none_of(keys->begin(), keys->end(), [place](const std::string& key) {
    int64_t other = place;
    return absl::SimpleAtoi(key.substr(8), &other) && other < place;
  });
}

// What a process that waits for others says now and then, instead of all that wait.
void LogStillJoining(Store& round, int64_t place, int64_t size, absl::Duration waited) {
  const std::string time = absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1)));
  absl::Status answers = round.Wait({ArrivalKey(place)}, kPatienceWithTheStore);
  if (answers.ok() && !IsSpeaker(round, place)) return;
  const auto arrivals = answers.ok() ? ArrivalsSoFar(round) : answers;
  Log(LogLevel::kWarning,
      absl::StrCat("still joining after ", time, "; ",
                   arrivals.ok() ? absl::StrCat("missing: ", Missing(*arrivals, size), " (store ",
                                                WithoutPrefixes(round), ")")
                                 : std::string(arrivals.status().message())));
}

absl::Status SizeMismatch(int64_t size, absl::string_view other) {
  return ArgumentError(absl::StrCat("world_size is ", size, " for this process (",
                                    ThisPeer().ToString(), "), but another has said ", other,
                                    ": start all ranks with the same world_size"));
}

// Whether a world of `size` has been joined, and left by all.
absl::StatusOr<bool> IsOver(const std::shared_ptr<Store>& store, absl::string_view size) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(size, &number)) return false;
  return Rounds(PlacesOf(size, store), number).AreOver();
}

// Agrees with the other ranks on the size. A world of another size is replaced once it is over. So
// that nobody arrives in one that is being replaced, this looks again after it has replaced it,
// and who arrives looks at the size afterwards.
absl::Status AgreeOnSize(const std::shared_ptr<Store>& store, int64_t size) {
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

// Holds a rank that is given, so that nobody else can have it.
absl::Status Claim(Store& places, int64_t rank, const Peer& self) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto claim,
                            places.CompareSet(ClaimKey(rank), "", self.Serialize()));
  if (claim.swapped) return absl::OkStatus();
  const auto other = Peer::Parse(claim.value);
  return ArgumentError(absl::StrCat(
      "rank ", rank, " is taken by ", other.ok() ? other->ToString() : "another process",
      ": give each process its own rank, or use a new store if that process is gone"));
}

// A place in a world of `size` that is still the size of `store`; `places` is a part of it.
absl::StatusOr<Rounds::Place> Arrive(Store& store, const std::shared_ptr<Store>& places,
                                     int64_t size, const Arrival& self) {
  SYNCLINE_ASSIGN_OR_RETURN(Rounds::Place place, Rounds(places, size).Take(self));
  SYNCLINE_ASSIGN_OR_RETURN(const std::string agreed, store.Get(kSize, kPatienceWithTheStore));
  if (agreed == absl::StrCat(size)) return place;
  SYNCLINE_RETURN_IF_ERROR(place.round->Delete(ArrivalKey(place.number)).status());
  return SizeMismatch(size, agreed);
}

// What a decision means for those who hear of it.
absl::Status StatusOf(absl::string_view outcome) {
  if (outcome == kComplete) return absl::OkStatus();
  if (absl::ConsumePrefix(&outcome, kInterrupted)) return BackendError(outcome);
  return TimeoutError(outcome);
}

// Decides, for all, that the world is complete or why it has failed; returns what was decided.
absl::Status Decide(Store& round, absl::string_view outcome) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto decided, round.CompareSet(kOutcome, "", outcome));
  return StatusOf(decided.value);
}

// A process that leaves early gives up the world for all: they would wait for it in vain. Returns
// OK if the world is complete all the same.
absl::Status LeaveInterrupted(Store& round, const absl::Status& interruption) {
  const Uninterruptible deciding;
  const absl::Status decided =
      Decide(round, absl::StrCat(kInterrupted, "a process (", ThisPeer().ToString(), ") was ",
                                 interruption.message(), " while it waited for others to join"));
  return decided.ok() ? decided : interruption;
}

// Waits until it is decided whether all have come. At the deadline the world is given up.
absl::Status AwaitOutcome(Store& round, int64_t place, int64_t size, const Deadline& deadline) {
  while (true) {
    const auto outcome = round.Get(kOutcome, std::min(deadline.Remaining(), kReportEvery));
    if (outcome.ok()) return StatusOf(*outcome);
    if (IsInterrupted(outcome.status())) return LeaveInterrupted(round, outcome.status());
    if (!absl::IsDeadlineExceeded(outcome.status())) return outcome.status();
    const absl::Duration waited = deadline.timeout() - deadline.Remaining();
    if (deadline.Expired()) {
      SYNCLINE_ASSIGN_OR_RETURN(const std::string absence, Absence(round, place, size, waited));
      return Decide(round, absence);
    }
    LogStillJoining(round, place, size, waited);
  }
}

// Returns once all have taken their places as this process has taken `place`.
absl::Status Meet(Store& round, int64_t place, int64_t size, const Deadline& deadline) {
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_decided, round.Check({std::string(kOutcome)}));
  if (is_decided) {
    return Annotate(AwaitOutcome(round, place, size, deadline),
                    "this rank came too late, the others gave up");
  }
  SYNCLINE_ASSIGN_OR_RETURN(const int64_t present, round.Add(kPresent, 1));
  if (present == size) return Decide(round, kComplete);
  return AwaitOutcome(round, place, size, deadline);
}

// After a failure: the host of the store takes it away only when the others know why.
void PartAfterFailure(Store& round, int64_t place, Part part) {
  round.Set(ToldKey(place), "").IgnoreError();
  if (part != Part::kHost) return;
  const auto arrivals = round.Keys("arrival/");
  if (!arrivals.ok()) return;
  std::vector<std::string> told;
  for (const std::string& key : *arrivals) told.push_back(absl::StrCat("told", key.substr(7)));
  round.Wait(told, kPatienceWithTheStore).IgnoreError();
}

}  // namespace

std::string Arrival::Serialize() const {
  return absl::StrCat(rank, part == Part::kHost ? " host " : " guest ", peer.Serialize());
}

absl::StatusOr<Arrival> Arrival::Parse(absl::string_view text) {
  const std::vector<absl::string_view> fields = absl::StrSplit(text, absl::MaxSplits(' ', 2));
  Arrival arrival;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &arrival.rank) || arrival.rank < -1) {
    return StoreError(absl::StrCat("'", text, "' does not describe a process: do two jobs, or two ",
                                   "versions of Syncline, share a store?"));
  }
  arrival.part = fields[1] == "host" ? Part::kHost : Part::kGuest;
  SYNCLINE_ASSIGN_OR_RETURN(arrival.peer, Peer::Parse(fields[2]));
  return arrival;
}

absl::StatusOr<std::vector<int64_t>> AssignRanks(const std::vector<Arrival>& arrivals) {
  std::set<int64_t> free_ranks;
  for (size_t i = 0; i < arrivals.size(); ++i) free_ranks.insert(static_cast<int64_t>(i));
  for (const Arrival& arrival : arrivals) {
    if (arrival.rank < 0 || free_ranks.erase(arrival.rank) == 1) continue;
    return StoreError(absl::StrCat("the store holds a rank ", arrival.rank, " too many in a world ",
                                   "of ", arrivals.size(), "; do two jobs share it?"));
  }
  std::vector<int64_t> ranks(arrivals.size());
  for (const Part part : {Part::kHost, Part::kGuest}) {
    for (size_t i = 0; i < arrivals.size(); ++i) {
      if (arrivals[i].part != part) continue;
      ranks[i] = arrivals[i].rank;
      if (ranks[i] < 0) ranks[i] = free_ranks.extract(free_ranks.begin()).value();
    }
  }
  return ranks;
}

absl::StatusOr<Membership> Membership::Join(const std::shared_ptr<Store>& store,
                                            const Request& request, const Deadline& deadline) {
  SYNCLINE_ASSIGN_OR_RETURN(Peer peer, IdentifyThisProcess());
  const Arrival self = {request.rank, request.part, std::move(peer)};
  SYNCLINE_RETURN_IF_ERROR(AgreeOnSize(store, request.size));
  Membership member;
  member.places_ = PlacesOf(absl::StrCat(request.size), store);
  if (request.rank >= 0) {
    SYNCLINE_RETURN_IF_ERROR(Claim(*member.places_, request.rank, self.peer));
    member.claim_ = ClaimKey(request.rank);
  }
  auto place = Arrive(*store, member.places_, request.size, self);
  if (!place.ok()) {
    const Uninterruptible leaving;
    if (!member.claim_.empty() &&
        member.places_->Wait({member.claim_}, kPatienceWithTheStore).ok()) {
      member.places_->Delete(member.claim_).status().IgnoreError();
    }
    return place.status();
  }
  member.round_ = place->round;
  member.place_ = place->number;
  absl::Status met = Meet(*member.round_, member.place_, request.size, deadline);
  if (met.ok()) met = member.Learn(request.size, deadline);
  if (met.ok()) return member;
  const Uninterruptible leaving;
  // If it is the store that has failed, there is nobody to tell.
  if (member.Leave(Deadline(kPatienceWithTheStore)).ok()) {
    PartAfterFailure(*member.round_, member.place_, request.part);
  }
  if (place->failure_before.empty() || KindOf(met) != ErrorKind::kTimeout) return met;
  return TimeoutError(
      absl::StrCat(met.message(), " The attempt before had failed, too: ", place->failure_before));
}

absl::Status Membership::Learn(int64_t size, const Deadline& deadline) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto texts,
                            round_->MultiGet(ArrivalKeys(size), deadline.Remaining()));
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Arrival> arrivals, Parse(texts));
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<int64_t> ranks, AssignRanks(arrivals));
  rank_ = ranks[place_ - 1];
  peers_.resize(size);
  for (size_t i = 0; i < arrivals.size(); ++i) peers_[ranks[i]] = arrivals[i].peer;
  return absl::OkStatus();
}

absl::Status Membership::Leave(const Deadline& deadline) {
  // A store that is silent would keep other questions waiting for long.
  SYNCLINE_RETURN_IF_ERROR(
      round_->Wait({ArrivalKey(place_)}, std::min(deadline.Remaining(), kPatienceWithTheStore)));
  if (!claim_.empty()) SYNCLINE_RETURN_IF_ERROR(places_->Delete(claim_).status());
  return round_->Set(LeftKey(place_), "");
}

}  // namespace syncline
