#include "core/store/check_same.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "core/base/host.h"
#include "core/base/origin_line.h"
#include "core/base/rank_ranges.h"
#include "core/store/error_text.h"
#include "syncline/check.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::store {
namespace {

// The keys: one for each rank that has come; "RANK VALUE" of the first rank; how many ranks have
// the same value as the first; and the outcome, decided once for all.
constexpr absl::string_view kCamePrefix = "came/";
std::string CameKey(int rank) { return absl::StrCat(kCamePrefix, rank); }
constexpr absl::string_view kFirst = "first";
constexpr absl::string_view kSame = "same";
constexpr absl::string_view kOutcome = "outcome";
// An outcome is this, or an error as SerializeError writes it.
constexpr absl::string_view kAllSame = "same";

absl::Status StatusOf(absl::string_view outcome, const CheckSameOptions& options) {
  if (outcome == kAllSame) return absl::OkStatus();
  absl::optional<absl::Status> error = ParseError(outcome, *absl::c_max_element(options.ranks) + 1);
  switch (error.has_value() ? KindOf(*error) : ErrorKind::kInternal) {
    case ErrorKind::kMismatch:
    case ErrorKind::kTimeout:
    case ErrorKind::kNetwork:
    case ErrorKind::kBackend:
      return *std::move(error);
    default:
      return StoreError(
          absl::StrCat(options.call, ": the outcome is '", outcome, "', which is not understood"));
  }
}

absl::Status Decide(Store& store, absl::string_view outcome, const CheckSameOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto decided, store.CompareSet(kOutcome, "", outcome));
  return StatusOf(decided.value, options);
}

absl::Status Decide(Store& store, const absl::Status& error, const CheckSameOptions& options) {
  return Decide(store, SerializeError(error), options);
}

absl::Status Mismatch(const CheckSameOptions& options, absl::string_view first) {
  const std::pair<absl::string_view, absl::string_view> other =
      absl::StrSplit(first, absl::MaxSplits(' ', 1));
  std::vector<int> ranks = {options.rank};
  int rank = -1;
  if (absl::SimpleAtoi(other.first, &rank) && absl::c_linear_search(options.ranks, rank)) {
    ranks.push_back(rank);
  }
  return WithRanks(
      MismatchError(absl::StrCat(options.call, ": rank ", other.first, " says ", other.second,
                                 ", rank ", options.rank, " says ", options.value,
                                 "; all ranks that take part must say the same")),
      std::move(ranks));
}

// The deadline has passed. Decides on a timeout that names the ranks that have not come, as far as
// the store tells.
absl::Status GiveUp(Store& store, const CheckSameOptions& options, const Deadline& deadline) {
  // This rank's own key is there, so a store that is alive answers at once. One that is silent
  // would hold up each of the requests below for its full timeout.
  absl::Status answers = store.Wait({CameKey(options.rank)}, kStoreProbeTimeout);
  if (!answers.ok()) return Annotate(answers, options.call);
  SYNCLINE_ASSIGN_OR_RETURN(const auto keys, store.Keys(kCamePrefix));
  const std::set<std::string> came(keys.begin(), keys.end());
  std::vector<int> absent;
  std::vector<std::string> present;
  for (int rank : options.ranks) {
    if (came.count(CameKey(rank)) == 0) {
      absent.push_back(rank);
      continue;
    }
    const auto text = store.Get(CameKey(rank), kStoreProbeTimeout);
    const auto peer = text.ok() ? Peer::Parse(*text) : text.status();
    present.push_back(
        absl::StrCat(rank, peer.ok() ? absl::StrCat(" (", peer->ToString(), ")") : ""));
  }
  const std::string all = base::RankRanges(options.ranks);
  const std::string within =
      absl::StrCat(" within ", absl::FormatDuration(deadline.timeout()), " of rank ", options.rank,
                   "; present: ", absl::StrJoin(present, ", "));
  if (absent.empty()) {
    const absl::Status late = TimeoutError(absl::StrCat(
        options.call, ": ranks ", all, " came, but not all of them said more", within));
    return Decide(store, late, options);
  }
  const absl::Status late = TimeoutError(absl::StrCat(
      options.call, ": rank ", base::RankRanges(absent), " of ", all, " did not come", within));
  return Decide(store, WithRanks(late, std::move(absent)), options);
}

absl::Status Compare(Store& store, const CheckSameOptions& options, const Deadline& deadline) {
  SYNCLINE_RETURN_IF_ERROR(store.Set(CameKey(options.rank), base::ThisPeer().Serialize()));
  const std::string mine = absl::StrCat(options.rank, " ", options.value);
  SYNCLINE_ASSIGN_OR_RETURN(const auto first, store.CompareSet(kFirst, "", mine));
  const std::pair<absl::string_view, absl::string_view> other =
      absl::StrSplit(first.value, absl::MaxSplits(' ', 1));
  if (other.second != options.value) {
    const absl::Status mismatch = Mismatch(options, first.value);
    // If the others have already agreed without this rank, it still gets the mismatch.
    absl::Status decided = Decide(store, mismatch, options);
    return decided.ok() ? mismatch : decided;
  }
  SYNCLINE_ASSIGN_OR_RETURN(const int64_t same, store.Add(kSame, 1));
  if (same == static_cast<int64_t>(options.ranks.size())) return Decide(store, kAllSame, options);
  const absl::Duration slice =
      options.check_peers ? base::kLivenessInterval : absl::InfiniteDuration();
  do {
    const auto outcome = store.Get(kOutcome, std::min(deadline.Remaining(), slice));
    if (outcome.ok()) return StatusOf(*outcome, options);
    if (!absl::IsDeadlineExceeded(outcome.status())) return outcome.status();
    const absl::Status alive = options.check_peers ? options.check_peers() : absl::OkStatus();
    if (!alive.ok()) {
      const absl::Status death = NetworkError(absl::StrCat(options.call, ": ", alive.message()));
      return Decide(store, WithRanks(death, RanksOf(alive)), options);
    }
  } while (!deadline.Expired());
  return GiveUp(store, options, deadline);
}

}  // namespace

absl::Status CheckSameOnAllRanks(Store& store, const CheckSameOptions& options,
                                 const Deadline& deadline) {
  SYNCLINE_DCHECK(absl::c_linear_search(options.ranks, options.rank));
  const absl::Status status = Compare(store, options, deadline);
  if (status.ok()) return status;
  if (IsInterrupted(status) || KindOf(status) == ErrorKind::kStore) {
    // The store may fail for this rank alone, such as a file on a disk that is full. The others
    // must not wait for it.
    const Uninterruptible deciding;
    const absl::Status failure =
        BackendError(absl::StrCat(options.call, ": rank ", options.rank, " (",
                                  base::ThisPeer().ToString(), "): ", status.message()));
    Decide(store, WithRanks(failure, {options.rank}), options).IgnoreError();
  }
  return status;
}

absl::StatusOr<bool> HasCheckExpired(Store& store) {
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_decided, store.Check({std::string(kOutcome)}));
  if (!is_decided) return false;
  SYNCLINE_ASSIGN_OR_RETURN(const std::string outcome, store.Get(kOutcome, kStoreProbeTimeout));
  const absl::optional<absl::Status> error = ParseError(outcome, base::kMaxRanks);
  if (!error.has_value()) return false;
  return KindOf(*error) == ErrorKind::kTimeout || KindOf(*error) == ErrorKind::kNetwork;
}

}  // namespace syncline::store
