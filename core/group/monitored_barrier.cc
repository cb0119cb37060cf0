#include "core/group/monitored_barrier.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "core/base/interrupt.h"
#include "core/base/rank_ranges.h"
#include "core/base/status.h"

namespace syncline {
namespace {

// How often a rank that waits looks whether its group has been aborted.
constexpr absl::Duration kGlance = absl::Milliseconds(100);
// For questions that a store which is alive answers at once.
constexpr absl::Duration kPatienceWithTheStore = absl::Seconds(2);

// What a verdict begins with; the message follows.
constexpr absl::string_view kAllCame = "ok";
constexpr absl::string_view kTimeout = "timeout ";
constexpr absl::string_view kAborted = "aborted ";
constexpr absl::string_view kDeath = "death ";

// One barrier, as its keys in the store.
class Meeting {
 public:
  Meeting(Store& store, int size, uint64_t number)
      : store_(store), size_(size), prefix_(absl::StrCat("monitored_barrier/", number, "/")) {}

  // Whether `rank` is the last to come.
  absl::StatusOr<bool> Come(int rank) {
    SYNCLINE_RETURN_IF_ERROR(store_.Set(Came(rank), ""));
    SYNCLINE_ASSIGN_OR_RETURN(const int64_t count, store_.Add(Key("count"), 1));
    return count == size_;
  }

  absl::StatusOr<std::string> Verdict(absl::Duration timeout) {
    return store_.Get(Key("verdict"), timeout);
  }

  // The first to conclude concludes for all; returns what that was.
  absl::StatusOr<std::string> Conclude(absl::string_view verdict) {
    SYNCLINE_ASSIGN_OR_RETURN(auto agreed, store_.CompareSet(Key("verdict"), "", verdict));
    return std::move(agreed.value);
  }

  // "rank 3" or "ranks 1, 3", of those whose arrival the store does not know; empty if all came.
  absl::StatusOr<std::string> Missing() {
    SYNCLINE_ASSIGN_OR_RETURN(const auto keys, store_.Keys(Key("came/")));
    const std::set<std::string> came(keys.begin(), keys.end());
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      if (came.count(Came(rank)) == 0) missing.push_back(rank);
    }
    if (missing.empty()) return std::string();
    return absl::StrCat(missing.size() == 1 ? "rank " : "ranks ", RankRanges(missing));
  }

  // The last to leave tidies up. What it leaves behind does no harm.
  void Leave() {
    const auto left = store_.Add(Key("left"), 1);
    if (!left.ok() || *left < size_) return;
    std::vector<std::string> keys = {Key("count"), Key("verdict"), Key("left")};
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
absl::Status Answers(Store& store, absl::Duration patience) {
  absl::Status answered = store.Wait({}, patience);
  if (answered.ok() || KindOf(answered) != ErrorKind::kTimeout) return answered;
  return TimeoutError(absl::StrCat("store ", store.ToString(), " does not answer; see whether the ",
                                   "process that hosts it is stopped"));
}

absl::Status StatusOf(absl::string_view verdict) {
  if (verdict == kAllCame) return absl::OkStatus();
  if (absl::ConsumePrefix(&verdict, kAborted)) return BackendError(verdict);
  if (absl::ConsumePrefix(&verdict, kDeath)) return NetworkError(verdict);
  absl::ConsumePrefix(&verdict, kTimeout);
  return TimeoutError(verdict);
}

// The deadline has passed.
absl::StatusOr<std::string> GiveUp(Store& store, Meeting& meeting, int size,
                                   absl::Duration timeout) {
  absl::Status answers = Answers(store, absl::ZeroDuration());
  if (!answers.ok()) return Annotate(answers, "not all ranks came, and it is not known which");
  SYNCLINE_ASSIGN_OR_RETURN(const std::string missing, meeting.Missing());
  if (missing.empty()) return meeting.Conclude(kAllCame);  // The last came just now.
  return meeting.Conclude(absl::StrCat(kTimeout, missing, " of ", size, " had not arrived after ",
                                       absl::FormatDuration(timeout)));
}

absl::StatusOr<std::string> Await(Store& store, Meeting& meeting, int rank, int size,
                                  const Deadline& deadline,
                                  const std::function<absl::Status()>& group_status,
                                  const PeerCheck& check_peers) {
  Deadline next_check(kLivenessInterval);
  while (true) {
    auto verdict = meeting.Verdict(std::min(deadline.Remaining(), kGlance));
    if (IsInterrupted(verdict.status())) {
      const Uninterruptible telling;
      const std::string text =
          absl::StrCat(kAborted, "rank ", rank, " was ", verdict.status().message());
      meeting.Conclude(text).status().IgnoreError();
    }
    if (verdict.ok() || KindOf(verdict.status()) != ErrorKind::kTimeout) return verdict;
    const absl::Status group = group_status ? group_status() : absl::OkStatus();
    if (!group.ok()) {
      if (Answers(store, absl::ZeroDuration()).ok()) {
        const std::string text = absl::StrCat(kAborted, "rank ", rank, " left: ", group.message());
        meeting.Conclude(text).status().IgnoreError();
      }
      return group;
    }
    if (check_peers && next_check.Expired()) {
      next_check = Deadline(kLivenessInterval);
      // One that has left the barrier was free to end. Then the verdict is there, and stands.
      const absl::Status alive = check_peers();
      if (!alive.ok()) return meeting.Conclude(absl::StrCat(kDeath, alive.message()));
    }
    if (deadline.Expired()) return GiveUp(store, meeting, size, deadline.timeout());
  }
}

}  // namespace

absl::Status MonitoredBarrier(Store& store, int rank, int size, uint64_t number,
                              const Deadline& deadline,
                              const std::function<absl::Status()>& group_status,
                              const PeerCheck& check_peers) {
  SYNCLINE_RETURN_IF_ERROR(
      Answers(store, std::min(deadline.Remaining() / 2, kPatienceWithTheStore)));
  Meeting meeting(store, size, number);
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_last, meeting.Come(rank));
  const auto verdict = is_last
                           ? meeting.Conclude(kAllCame)
                           : Await(store, meeting, rank, size, deadline, group_status, check_peers);
  SYNCLINE_RETURN_IF_ERROR(verdict.status());
  SYNCLINE_RETURN_IF_ERROR(StatusOf(*verdict));
  meeting.Leave();
  return absl::OkStatus();
}

}  // namespace syncline
