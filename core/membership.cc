#include "core/membership.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/log.h"
#include "core/prefix_store.h"
#include "core/status.h"

namespace syncline {
namespace {

using Part = OpenedStore::Part;

// For questions that a store which is alive answers at once.
constexpr absl::Duration kPatienceWithTheStore = absl::Seconds(2);
// How often a process that waits for others says so.
constexpr absl::Duration kReportEvery = absl::Seconds(10);

// In the store: the size of the worlds that meet in it now.
constexpr absl::string_view kSize = "size";
// In the part of one size: how many processes have ever come and left; who holds a given rank.
constexpr absl::string_view kArrived = "arrived";
constexpr absl::string_view kLeft = "left";
std::string ClaimKey(int64_t rank) { return absl::StrCat("claim/", rank); }
// In the part of one world: who came, by place from 1 on, and how many; whether all did, decided
// once for all; and which of those that came know that not all did.
std::string ArrivalKey(int64_t place) { return absl::StrCat("arrival/", place); }
std::string ToldKey(int64_t place) { return absl::StrCat("told/", place); }
constexpr absl::string_view kPresent = "present";
constexpr absl::string_view kOutcome = "outcome";
constexpr absl::string_view kComplete = "complete";

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

// Those whose arrival the store knows now, by rank.
absl::StatusOr<std::vector<Arrival>> ArrivalsSoFar(Store& round) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, round.Keys("arrival/"));
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                            round.MultiGet(keys, kPatienceWithTheStore));
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<Arrival> arrivals, Parse(texts));
  std::sort(arrivals.begin(), arrivals.end(),
            [](const Arrival& a, const Arrival& b) { return a.rank < b.rank; });
  return arrivals;
}

// "0 (host a, pid 7), 1 (...)"; without a rank "any (host a, pid 7)".
std::string Describe(const std::vector<Arrival>& arrivals) {
  return absl::StrJoin(arrivals, ", ", [](std::string* out, const Arrival& a) {
    absl::StrAppend(out, a.rank < 0 ? "any" : absl::StrCat(a.rank), " (", a.peer.ToString(), ")");
  });
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
  return absl::StrCat("rank ", absl::StrJoin(absent, ", "), " of ", size);
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
  return absl::StrCat(
      Missing(*arrivals, size), " did not join within ", time, "; present: ", Describe(*arrivals),
      ". Were all ranks started, with the same world_size and store (", round.ToString(), ")?");
}

absl::Status SizeMismatch(int64_t size, absl::string_view other) {
  return ArgumentError(absl::StrCat("world_size is ", size, " for this process (",
                                    ThisPeer().ToString(), "), but another has said ", other,
                                    ": start all ranks with the same world_size"));
}

// Whether a world of `size` has been joined and left by all.
absl::StatusOr<bool> IsOver(Store& store, absl::string_view size) {
  const std::string part = absl::StrCat("of ", size, "/");
  SYNCLINE_ASSIGN_OR_RETURN(const int64_t left, store.Add(absl::StrCat(part, kLeft), 0));
  SYNCLINE_ASSIGN_OR_RETURN(const int64_t arrived, store.Add(absl::StrCat(part, kArrived), 0));
  return arrived > 0 && arrived == left;
}

// Agrees with the other ranks on the size. A world of another size is replaced once it is over. So
// that nobody arrives in one that is being replaced, this looks again after it has replaced it,
// and who arrives looks at the size afterwards.
absl::Status AgreeOnSize(Store& store, int64_t size) {
  const std::string text = absl::StrCat(size);
  SYNCLINE_ASSIGN_OR_RETURN(auto agreed, store.CompareSet(kSize, "", text));
  if (agreed.value == text) return absl::OkStatus();
  const std::string other = agreed.value;
  SYNCLINE_ASSIGN_OR_RETURN(bool is_over, IsOver(store, other));
  if (!is_over) return SizeMismatch(size, other);
  SYNCLINE_ASSIGN_OR_RETURN(agreed, store.CompareSet(kSize, other, text));
  if (agreed.value != text) return SizeMismatch(size, agreed.value);
  SYNCLINE_ASSIGN_OR_RETURN(is_over, IsOver(store, other));
  if (is_over) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(store.CompareSet(kSize, text, other).status());
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

std::shared_ptr<Store> RoundOf(int64_t arrival, int64_t size, std::shared_ptr<Store> places) {
  return std::make_shared<PrefixStore>(absl::StrCat("round/", (arrival - 1) / size + 1),
                                       std::move(places));
}

// This process's number among all that ever came; `places` is a part of `store`.
absl::StatusOr<int64_t> Arrive(Store& store, const std::shared_ptr<Store>& places, int64_t size) {
  SYNCLINE_ASSIGN_OR_RETURN(const int64_t number, places->Add(kArrived, 1));
  SYNCLINE_ASSIGN_OR_RETURN(const int64_t left, places->Add(kLeft, 0));
  if (number <= left + size) {
    SYNCLINE_ASSIGN_OR_RETURN(const std::string agreed, store.Get(kSize, kPatienceWithTheStore));
    if (agreed == absl::StrCat(size)) return number;
    SYNCLINE_RETURN_IF_ERROR(places->Add(kArrived, -1).status());
    return SizeMismatch(size, agreed);
  }
  SYNCLINE_RETURN_IF_ERROR(places->Add(kArrived, -1).status());
  const auto round = RoundOf(left + size, size, places);
  const auto there = ArrivalsSoFar(*round);
  return ArgumentError(absl::StrCat(
      "more processes than world_size, ", size, ", have come: this one (", ThisPeer().ToString(),
      ") has no place beside ",
      there.ok() && !there->empty() ? absl::StrCat("ranks ", Describe(*there)) : "the others",
      ". Give each job its own address, file or group_name, or use a new store if those are gone"));
}

// What a decision means for those who hear of it.
absl::Status StatusOf(absl::string_view outcome) {
  return outcome == kComplete ? absl::OkStatus() : TimeoutError(outcome);
}

// Decides, for all, that the world is complete or why it has failed; returns what was decided.
absl::Status Decide(Store& round, absl::string_view outcome) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto decided, round.CompareSet(kOutcome, "", outcome));
  return StatusOf(decided.value);
}

// Waits until it is decided whether all have come. At the deadline the world is given up.
absl::Status AwaitOutcome(Store& round, int64_t place, int64_t size, const Deadline& deadline) {
  while (true) {
    const auto outcome = round.Get(kOutcome, std::min(deadline.Remaining(), kReportEvery));
    if (outcome.ok()) return StatusOf(*outcome);
    if (!absl::IsDeadlineExceeded(outcome.status())) return outcome.status();
    const auto absence = Absence(round, place, size, deadline.timeout() - deadline.Remaining());
    if (deadline.Expired()) {
      SYNCLINE_RETURN_IF_ERROR(absence.status());
      return Decide(round, *absence);
    }
    Log(LogLevel::kWarning,
        absl::StrCat("still joining: ", absence.ok() ? *absence : absence.status().message()));
  }
}

// Takes place number `place`, and returns once all have taken theirs.
absl::Status Meet(Store& round, int64_t place, int64_t size, const Arrival& self,
                  const Deadline& deadline) {
  SYNCLINE_RETURN_IF_ERROR(round.Set(ArrivalKey(place), self.Serialize()));
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
  // If it is the store that has failed, there is nobody to tell.
  if (!round.Wait({ArrivalKey(place)}, kPatienceWithTheStore).ok()) return;
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
  const int64_t size = request.size;
  const Arrival self = {request.rank, request.part, ThisPeer()};
  SYNCLINE_RETURN_IF_ERROR(AgreeOnSize(*store, size));
  Membership member;
  member.places_ = std::make_shared<PrefixStore>(absl::StrCat("of ", size), store);
  if (request.rank >= 0) {
    SYNCLINE_RETURN_IF_ERROR(Claim(*member.places_, request.rank, self.peer));
    member.claim_ = ClaimKey(request.rank);
  }
  absl::StatusOr<int64_t> number = Arrive(*store, member.places_, size);
  if (!number.ok()) {
    if (!member.claim_.empty()) member.places_->Delete(member.claim_).status().IgnoreError();
    return number.status();
  }
  member.round_ = RoundOf(*number, size, member.places_);
  const int64_t place = (*number - 1) % size + 1;
  absl::Status met = Meet(*member.round_, place, size, self, deadline);
  if (!met.ok()) {
    PartAfterFailure(*member.round_, place, request.part);
    return met;
  }
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                            member.round_->MultiGet(ArrivalKeys(size), deadline.timeout()));
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Arrival> arrivals, Parse(texts));
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<int64_t> ranks, AssignRanks(arrivals));
  member.rank_ = ranks[place - 1];
  member.peers_.resize(size);
  for (size_t i = 0; i < arrivals.size(); ++i) member.peers_[ranks[i]] = arrivals[i].peer;
  return member;
}

absl::Status Membership::Leave() {
  if (!claim_.empty()) SYNCLINE_RETURN_IF_ERROR(places_->Delete(claim_).status());
  return places_->Add(kLeft, 1).status();
}

}  // namespace syncline
