#include "core/join/membership_rounds.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/store/prefix_store.h"

namespace syncline {
namespace {

// For questions that a store which is alive answers at once.
constexpr absl::Duration kPatienceWithTheStore = absl::Seconds(2);

// How many processes a message lists with host and pid.
constexpr size_t kShown = 8;

// In the part of one size: the number of the first round that matters.
constexpr absl::string_view kFirst = "first";
// In the part of one round: where those without a rank begin to look for a place, so that they sit
// in order of arrival. Nothing but the order depends on it.
constexpr absl::string_view kTickets = "tickets";

// What was decided about a round; empty if nothing was.
absl::StatusOr<std::string> OutcomeOf(Store& round) {
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_decided, round.Check({std::string(kOutcome)}));
  if (!is_decided) return std::string();
  return round.Get(kOutcome, kPatienceWithTheStore);
}

absl::StatusOr<std::set<int64_t>> PlacesLeft(Store& round) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, round.Keys("left/"));
  std::set<int64_t> places;
  for (const std::string& key : keys) {
    int64_t place = 0;
    if (absl::SimpleAtoi(key.substr(5), &place)) places.insert(place);
  }
  return places;
}

}  // namespace

std::string ArrivalKey(int64_t place) { return absl::StrCat("arrival/", place); }
std::string LeftKey(int64_t place) { return absl::StrCat("left/", place); }

absl::StatusOr<std::vector<Arrival>> ArrivalsSoFar(Store& round) {
  absl::StatusOr<std::vector<std::string>> texts;
  // Again, should one have been taken back in between.
  for (int attempt = 0; attempt < 3; ++attempt) {
    SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, round.Keys("arrival/"));
    texts = round.MultiGet(keys, absl::ZeroDuration());
    if (texts.ok() || KindOf(texts.status()) != ErrorKind::kTimeout) break;
  }
  SYNCLINE_RETURN_IF_ERROR(texts.status());
  std::vector<Arrival> arrivals;
  for (const std::string& text : *texts) {
    SYNCLINE_ASSIGN_OR_RETURN(Arrival arrival, Arrival::Parse(text));
    arrivals.push_back(std::move(arrival));
  }
  std::sort(arrivals.begin(), arrivals.end(),
            [](const Arrival& a, const Arrival& b) { return a.rank < b.rank; });
  return arrivals;
}

std::string Describe(const std::vector<Arrival>& arrivals) {
  const size_t shown = std::min(arrivals.size(), kShown);
  std::string text = absl::StrJoin(arrivals.begin(), arrivals.begin() + shown, ", ",
                                   [](std::string* out, const Arrival& a) {
                                     absl::StrAppend(out, a.rank < 0 ? "any" : absl::StrCat(a.rank),
                                                     " (", a.peer.ToString(), ")");
                                   });
  if (shown < arrivals.size()) {
    absl::StrAppend(&text, " and ", arrivals.size() - shown, " more");
  }
  return text;
}

absl::StatusOr<Rounds::Place> Rounds::Take(const Arrival& self) {
  SYNCLINE_ASSIGN_OR_RETURN(int64_t number, First());
  std::optional<Places> free;  // All, if nobody of an earlier round is still there.
  std::string failure;
  for (;; ++number) {
    const std::shared_ptr<Store> round = Round(number);
    SYNCLINE_ASSIGN_OR_RETURN(const std::string outcome, OutcomeOf(*round));
    if (outcome.empty()) {
      SYNCLINE_ASSIGN_OR_RETURN(const int64_t place, TakeIn(*round, free, self));
      if (place == 0) return Refused(*round);
      return Place{round, place, failure};
    }
    failure = outcome == kComplete ? "" : outcome;
    if (outcome == kComplete) {
      SYNCLINE_ASSIGN_OR_RETURN(free, PlacesLeft(*round));
      if (free->empty()) return Refused(*round);
      if (static_cast<int64_t>(free->size()) == size_) free.reset();
    }
    // What a failed round has passed on is what the one before it left.
    if (!free.has_value()) SYNCLINE_RETURN_IF_ERROR(Skip(number));
  }
}

absl::StatusOr<bool> Rounds::AreOver() {
  SYNCLINE_ASSIGN_OR_RETURN(int64_t number, First());
  for (;; ++number) {
    const std::shared_ptr<Store> round = Round(number);
    SYNCLINE_ASSIGN_OR_RETURN(const std::string outcome, OutcomeOf(*round));
    if (outcome.empty()) {
      SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> waiting, round->Keys("arrival/"));
      return waiting.empty() && number > 1;
    }
    if (outcome != kComplete) continue;
    SYNCLINE_ASSIGN_OR_RETURN(const Places left, PlacesLeft(*round));
    if (static_cast<int64_t>(left.size()) < size_) return false;
  }
}

std::shared_ptr<Store> Rounds::Round(int64_t number) const {
  return std::make_shared<PrefixStore>(absl::StrCat("round/", number), store_);
}

absl::StatusOr<int64_t> Rounds::First() {
  SYNCLINE_ASSIGN_OR_RETURN(const auto first, store_->CompareSet(kFirst, "", "1"));
  int64_t number = 0;
  if (absl::SimpleAtoi(first.value, &number) && number >= 1) return number;
  return StoreError(absl::StrCat("'", first.value, "' is not the number of a round: do two jobs, ",
                                 "or two versions of Syncline, share a store?"));
}

absl::Status Rounds::Skip(int64_t first) {
  return store_->CompareSet(kFirst, absl::StrCat(first), absl::StrCat(first + 1)).status();
}

absl::StatusOr<int64_t> Rounds::TakeIn(Store& round, const std::optional<Places>& free,
                                       const Arrival& self) {
  int64_t start = self.rank + 1;
  if (self.rank < 0) {
    SYNCLINE_ASSIGN_OR_RETURN(start, round.Add(kTickets, 1));
  }
  const std::string text = self.Serialize();
  for (int64_t i = 0; i < size_; ++i) {
    const int64_t place = (start - 1 + i) % size_ + 1;
    if (free.has_value() && free->count(place) == 0) continue;
    SYNCLINE_ASSIGN_OR_RETURN(const auto taken, round.CompareSet(ArrivalKey(place), "", text));
    if (taken.swapped) return place;
  }
  return 0;
}

absl::Status Rounds::Refused(Store& round) const {
  const auto there = ArrivalsSoFar(round);
  return ArgumentError(absl::StrCat(
      "more processes than world_size, ", size_, ", have come: this one (", ThisPeer().ToString(),
      ") has no place beside ",
      there.ok() && !there->empty() ? absl::StrCat("ranks ", Describe(*there)) : "the others",
      ". Give each job its own address, file or group_name, or use a new store if those are gone"));
}

}  // namespace syncline
