#include "core/store/agreement.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/host.h"
#include "core/base/interrupt.h"
#include "core/base/rank_ranges.h"
#include "core/base/status.h"

namespace syncline {
namespace {

// For questions that a store which is alive answers at once.
constexpr absl::Duration kPatienceWithTheStore = absl::Seconds(2);

// Keys: who has come; what the first of them said, "rank text"; how many have said the same; and
// what came of it, decided once for all.
std::string CameKey(int64_t rank) { return absl::StrCat("came/", rank); }
constexpr absl::string_view kFirst = "first";
constexpr absl::string_view kAgreeing = "agreeing";
constexpr absl::string_view kOutcome = "outcome";
// What an outcome begins with.
constexpr absl::string_view kAgreed = "agreed";
constexpr absl::string_view kMismatch = "mismatch ";
constexpr absl::string_view kTimeout = "timeout ";
constexpr absl::string_view kFailure = "failure ";
constexpr absl::string_view kDeath = "death ";

absl::Status StatusOf(absl::string_view outcome) {
  if (outcome == kAgreed) return absl::OkStatus();
  if (absl::ConsumePrefix(&outcome, kMismatch)) return MismatchError(outcome);
  if (absl::ConsumePrefix(&outcome, kFailure)) return BackendError(outcome);
  if (absl::ConsumePrefix(&outcome, kDeath)) return NetworkError(outcome);
  absl::ConsumePrefix(&outcome, kTimeout);
  return TimeoutError(outcome);
}

absl::Status Decide(Store& store, absl::string_view outcome) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto decided, store.CompareSet(kOutcome, "", outcome));
  return StatusOf(decided.value);
}

std::string Mismatch(const Proposal& proposal, absl::string_view first) {
  const std::pair<absl::string_view, absl::string_view> other =
      absl::StrSplit(first, absl::MaxSplits(' ', 1));
  return absl::StrCat(proposal.call, ": rank ", other.first, " says ", other.second, ", rank ",
                      proposal.rank, " says ", proposal.text,
                      "; all ranks that take part must say the same");
}

// Who has not come, as far as the store tells.
absl::StatusOr<std::string> Absence(Store& store, const Proposal& proposal,
                                    const Deadline& deadline) {
  // A store that is silent would keep other questions waiting for long.
  absl::Status answers = store.Wait({CameKey(proposal.rank)}, kPatienceWithTheStore);
  if (!answers.ok()) return Annotate(answers, proposal.call);
  SYNCLINE_ASSIGN_OR_RETURN(const auto keys, store.Keys("came/"));
  const std::set<std::string> came(keys.begin(), keys.end());
  std::vector<int64_t> absent;
  std::vector<std::string> present;
  for (int64_t rank : proposal.ranks) {
    if (came.count(CameKey(rank)) == 0) {
      absent.push_back(rank);
      continue;
    }
    const auto text = store.Get(CameKey(rank), kPatienceWithTheStore);
    const auto peer = text.ok() ? Peer::Parse(*text) : text.status();
    present.push_back(
        absl::StrCat(rank, peer.ok() ? absl::StrCat(" (", peer->ToString(), ")") : ""));
  }
  const std::string all = RankRanges(proposal.ranks);
  const std::string within =
      absl::StrCat(" within ", absl::FormatDuration(deadline.timeout()), " of rank ", proposal.rank,
                   "; present: ", absl::StrJoin(present, ", "));
  if (absent.empty()) {
    return absl::StrCat(proposal.call, ": ranks ", all, " came, but not all of them said more",
                        within);
  }
  return absl::StrCat(proposal.call, ": rank ", RankRanges(absent), " of ", all, " did not come",
                      within);
}

absl::Status Meet(Store& store, const Proposal& proposal, const Deadline& deadline) {
  SYNCLINE_RETURN_IF_ERROR(store.Set(CameKey(proposal.rank), ThisPeer().Serialize()));
  const std::string said = absl::StrCat(proposal.rank, " ", proposal.text);
  SYNCLINE_ASSIGN_OR_RETURN(const auto first, store.CompareSet(kFirst, "", said));
  const std::pair<absl::string_view, absl::string_view> other =
      absl::StrSplit(first.value, absl::MaxSplits(' ', 1));
  if (other.second != proposal.text) {
    const std::string mismatch = Mismatch(proposal, first.value);
    // Where the others have already gone on, without this rank, it is told all the same.
    absl::Status decided = Decide(store, absl::StrCat(kMismatch, mismatch));
    return decided.ok() ? MismatchError(mismatch) : decided;
  }
  SYNCLINE_ASSIGN_OR_RETURN(const int64_t agreeing, store.Add(kAgreeing, 1));
  if (agreeing == static_cast<int64_t>(proposal.ranks.size())) return Decide(store, kAgreed);
  const absl::Duration slice = proposal.check_peers ? kLivenessInterval : absl::InfiniteDuration();
  do {
    const auto outcome = store.Get(kOutcome, std::min(deadline.Remaining(), slice));
    if (outcome.ok()) return StatusOf(*outcome);
    if (!absl::IsDeadlineExceeded(outcome.status())) return outcome.status();
    const absl::Status alive = proposal.check_peers ? proposal.check_peers() : absl::OkStatus();
    if (!alive.ok()) {
      return Decide(store, absl::StrCat(kDeath, proposal.call, ": ", alive.message()));
    }
  } while (!deadline.Expired());
  SYNCLINE_ASSIGN_OR_RETURN(const std::string absence, Absence(store, proposal, deadline));
  return Decide(store, absl::StrCat(kTimeout, absence));
}

}  // namespace

absl::Status Agree(Store& store, const Proposal& proposal, const Deadline& deadline) {
  const absl::Status status = Meet(store, proposal, deadline);
  if (IsInterrupted(status) || KindOf(status) == ErrorKind::kStore) {
    // Such as a disk that is full. The others are not to wait for this rank.
    const Uninterruptible telling;
    Decide(store, absl::StrCat(kFailure, proposal.call, ": rank ", proposal.rank, " (",
                               ThisPeer().ToString(), "): ", status.message()))
        .IgnoreError();
  }
  return status;
}

absl::StatusOr<bool> IsGivenUp(Store& store) {
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_decided, store.Check({std::string(kOutcome)}));
  if (!is_decided) return false;
  SYNCLINE_ASSIGN_OR_RETURN(const std::string outcome, store.Get(kOutcome, kPatienceWithTheStore));
  return absl::StartsWith(outcome, kTimeout) || absl::StartsWith(outcome, kDeath);
}

}  // namespace syncline
