#include "core/group/monitored_barrier.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/rank_ranges.h"
#include "core/store/error_text.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

// How often a rank that waits looks whether its group has been aborted.
constexpr absl::Duration kGlance = absl::Milliseconds(100);
// For questions that a store which is alive answers at once.
constexpr absl::Duration kStoreTimeout = absl::Seconds(2);

// An outcome is this, or an error as SerializeError writes it.
constexpr absl::string_view kAllCame = "ok";

// One barrier, as its keys in the store.
class BarrierState {
 public:
  BarrierState(Store& store, int size, uint64_t number)
      : store_(store), size_(size), prefix_(absl::StrCat("monitored_barrier/", number, "/")) {}

  // Whether `rank` is the last to come.
  absl::StatusOr<bool> Come(int rank) {
    SYNCLINE_RETURN_IF_ERROR(store_.Set(Came(rank), ""));
    SYNCLINE_ASSIGN_OR_RETURN(const int64_t count, store_.Add(Key("count"), 1));
    return count == size_;
  }

  absl::StatusOr<std::string> Outcome(absl::Duration timeout) {
    return store_.Get(Key("outcome"), timeout);
  }

  // The first to conclude concludes for all; returns what that was.
  absl::StatusOr<std::string> Conclude(absl::string_view outcome) {
    SYNCLINE_ASSIGN_OR_RETURN(auto agreed, store_.CompareSet(Key("outcome"), "", outcome));
    return std::move(agreed.value);
  }

  absl::StatusOr<std::string> Conclude(const absl::Status& error) {
    return Conclude(store::SerializeError(error));
  }

  // Those whose arrival the store does not know; empty if all came.
  absl::StatusOr<std::vector<int>> Missing() {
    SYNCLINE_ASSIGN_OR_RETURN(const auto keys, store_.Keys(Key("came/")));
    const std::set<std::string> came(keys.begin(), keys.end());
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      if (came.count(Came(rank)) == 0) missing.push_back(rank);
    }
    return missing;
  }

  // The last to leave tidies up. What it leaves behind does no harm.
  void Leave() {
    const auto left = store_.Add(Key("left"), 1);
    if (!left.ok() || *left < size_) return;
    std::vector<std::string> keys = {Key("count"), Key("outcome"), Key("left")};
    for (int rank = 0; rank < size_; ++rank) keys.push_back(Came(rank));
    for (const std::string& key : keys) {
      if (!store_.Delete(key).ok()) return;
    }
  }

 private:
  std::string Key(absl::string_view name) const { return absl::StrCat(prefix_, name); }
  std::string Came(int rank) const { return Key(absl::StrCat("came/", rank)); }

  Store& store_;
  const int size_;
  const std::string prefix_;
};

// An error if the store is silent, which would keep other questions waiting for long.
absl::Status Answers(Store& store, absl::Duration timeout) {
  absl::Status answered = store.Wait({}, timeout);
  if (answered.ok() || KindOf(answered) != ErrorKind::kTimeout) return answered;
  return TimeoutError(absl::StrCat("store ", store.ToString(), " does not answer; see whether the ",
                                   "process that hosts it is stopped"));
}

// Whether a barrier can end with an error of this kind.
bool IsConcluded(ErrorKind kind) {
  return kind == ErrorKind::kTimeout || kind == ErrorKind::kBackend || kind == ErrorKind::kNetwork;
}

absl::Status StatusOf(absl::string_view outcome, int size) {
  if (outcome == kAllCame) return absl::OkStatus();
  absl::optional<absl::Status> error = store::ParseError(outcome, size);
  if (error.has_value() && IsConcluded(KindOf(*error))) return *std::move(error);
  return StoreError(absl::StrCat("the outcome is '", outcome, "', which is not understood"));
}

// The deadline has passed.
absl::StatusOr<std::string> GiveUp(Store& store, BarrierState& state, int size,
                                   absl::Duration timeout) {
  absl::Status answers = Answers(store, absl::ZeroDuration());
  if (!answers.ok()) return Annotate(answers, "not all ranks came, and it is not known which");
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<int> missing, state.Missing());
  if (missing.empty()) return state.Conclude(kAllCame);  // The last came just now.
  const absl::Status late = TimeoutError(
      absl::StrCat(missing.size() == 1 ? "rank " : "ranks ", base::RankRanges(missing), " of ",
                   size, " had not arrived after ", absl::FormatDuration(timeout)));
  return state.Conclude(WithRanks(late, missing));
}

absl::StatusOr<std::string> Await(Store& store, BarrierState& state, int rank, int size,
                                  const Deadline& deadline,
                                  const std::function<absl::Status()>& group_status,
                                  const PeerCheck& check_peers) {
  Deadline next_check(base::kLivenessInterval);
  while (true) {
    auto outcome = state.Outcome(std::min(deadline.Remaining(), kGlance));
    if (IsInterrupted(outcome.status())) {
      const Uninterruptible telling;
      const absl::Status interrupted =
          BackendError(absl::StrCat("rank ", rank, " was ", outcome.status().message()));
      state.Conclude(WithRanks(interrupted, {rank})).status().IgnoreError();
    }
    if (outcome.ok() || KindOf(outcome.status()) != ErrorKind::kTimeout) return outcome;
    const absl::Status group = group_status ? group_status() : absl::OkStatus();
    if (!group.ok()) {
      if (Answers(store, absl::ZeroDuration()).ok()) {
        const absl::Status left =
            BackendError(absl::StrCat("rank ", rank, " left: ", group.message()));
        // This rank lives. If the cause names others, it is they who are at fault.
        std::vector<int> ranks = RanksOf(group);
        if (ranks.empty()) ranks = {rank};
        state.Conclude(WithRanks(left, std::move(ranks))).status().IgnoreError();
      }
      return group;
    }
    if (check_peers && next_check.Expired()) {
      next_check = Deadline(base::kLivenessInterval);
      // One that has left the barrier was free to end. Then the outcome is there, and stands.
      const absl::Status alive = check_peers();
      if (!alive.ok()) return state.Conclude(alive);
    }
    if (deadline.Expired()) return GiveUp(store, state, size, deadline.timeout());
  }
}

}  // namespace

absl::Status MonitoredBarrier(Store& store, int rank, int size, uint64_t number,
                              const Deadline& deadline,
                              const std::function<absl::Status()>& group_status,
                              const PeerCheck& check_peers) {
  SYNCLINE_RETURN_IF_ERROR(Answers(store, std::min(deadline.Remaining() / 2, kStoreTimeout)));
  BarrierState state(store, size, number);
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_last, state.Come(rank));
  const auto outcome = is_last
                           ? state.Conclude(kAllCame)
                           : Await(store, state, rank, size, deadline, group_status, check_peers);
  SYNCLINE_RETURN_IF_ERROR(outcome.status());
  SYNCLINE_RETURN_IF_ERROR(StatusOf(*outcome, size));
  state.Leave();
  return absl::OkStatus();
}

}  // namespace syncline::group
