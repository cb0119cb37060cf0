#include "backends/shm/meeting.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backends/common/call_words.h"
#include "backends/shm/call_notes.h"
#include "core/base/status.h"

namespace syncline {
namespace {

// How long a rank that has met others waits for their calls in full, to quote them: they are here,
// but any may be stopped. It knows of the mismatch without.
constexpr absl::Duration kExplaining = absl::Seconds(1);

// What all_to_all's header says of elements that go from and to the rank: the most, and whether all
// are as many; as one number, which is not negative if they are.
int64_t SplitsOf(const Call& call) {
  int64_t most = call.counts[0];
  bool is_even = true;
  for (const auto* list : {&call.counts, &call.expected}) {
    for (int64_t count : *list) {
      if (count == most) continue;
      is_even = false;
      most = std::max(most, count);
    }
  }
  return is_even ? most : ~most;
}

int64_t SplitsIn(const Header::Content& content) {
  int64_t splits;
  std::memcpy(&splits, content.payload, sizeof(splits));
  return splits;
}

int64_t Most(int64_t splits) { return splits < 0 ? ~splits : splits; }

}  // namespace

absl::Status Meeting::Open() {
  const int rank = vigil_.rank();
  RankArea& area = board_.area(rank);
  Header& own = board_.header(rank, waiting_.number);
  SetWords(waiting_.call, own_);
  own.content = own_;
  own.number.store(waiting_.number, std::memory_order_release);
  vigil_.Ring(area.done);
  int other = -1;
  for (int r = 0; r < board_.size(); ++r) {
    if (r == rank) continue;
    const Header& header = board_.header(r, waiting_.number);
    SYNCLINE_RETURN_IF_ERROR(vigil_.Await(board_.area(r).done, r, waiting_, [&] {
      return header.number.load(std::memory_order_acquire) == waiting_.number;
    }));
    if (!SameWords(own_, header.content)) other = r;
  }
  return other < 0 ? absl::OkStatus() : ExplainMismatch(other);
}

int64_t Meeting::LaySplits() {
  const int64_t splits = SplitsOf(waiting_.call);
  std::memcpy(own_.payload, &splits, sizeof(splits));
  return Most(splits);
}

int64_t Meeting::MostOf(int rank) const {
  return Most(SplitsIn(board_.header(rank, waiting_.number).content));
}

absl::StatusOr<int64_t> Meeting::AgreeOnSplits() {
  const int64_t own = SplitsIn(own_);
  int64_t most = Most(own);
  bool all_even = own >= 0;
  for (int r = 0; r < board_.size(); ++r) {
    const int64_t splits = SplitsIn(board_.header(r, waiting_.number).content);
    if (splits == own) continue;
    all_even = false;
    most = std::max(most, Most(splits));
  }
  if (all_even) return most;
  Explain();
  for (int r = 0; r < board_.size(); ++r) {
    SYNCLINE_RETURN_IF_ERROR(
        vigil_.Await(board_.area(r).done, r, waiting_, [&] { return HasExplained(r); }));
  }
  const absl::Status status = CheckCalls();
  if (!status.ok()) return vigil_.Condemn(status);
  return most;
}

void Meeting::Explain() {
  const int rank = vigil_.rank();
  const std::vector<int64_t> words = ToWords(waiting_.call);
  std::copy(words.begin(), words.end(), board_.call(rank));
  board_.area(rank).explained.store(waiting_.number, std::memory_order_release);
  vigil_.Ring(board_.area(rank).done);
}

bool Meeting::HasExplained(int rank) const {
  return board_.area(rank).explained.load(std::memory_order_acquire) >= waiting_.number;
}

absl::StatusOr<Call> Meeting::CallOf(int rank) const {
  return FromWords(absl::MakeConstSpan(board_.call(rank), MaxCallWords(board_.size())));
}

absl::Status Meeting::CheckCalls() const {
  std::vector<Call> calls;
  for (int r = 0; r < board_.size(); ++r) {
    SYNCLINE_ASSIGN_OR_RETURN(Call call, CallOf(r));
    calls.push_back(std::move(call));
  }
  std::vector<const Call*> pointers;
  for (const Call& call : calls) pointers.push_back(&call);
  return CheckCollective(pointers);
}

absl::Status Meeting::ExplainMismatch(int rank) {
  Explain();
  const Deadline patience(kExplaining), never(absl::InfiniteDuration());
  const Waiting waiting = {waiting_.call, never, waiting_.number};
  bool all_have = true;
  for (int r = 0; r < board_.size(); ++r) {
    SYNCLINE_RETURN_IF_ERROR(vigil_.Await(board_.area(r).done, r, waiting,
                                          [&] { return HasExplained(r) || patience.Expired(); }));
    all_have = all_have && HasExplained(r);
  }
  const absl::Status status = all_have ? CheckCalls() : absl::OkStatus();
  if (!status.ok()) return vigil_.Condemn(status);
  // A rank stands still after its header, which says enough.
  std::string theirs =
      absl::StrCat("another, ", NameOfWords(board_.header(rank, waiting_.number).content));
  if (HasExplained(rank)) {
    const auto call = CallOf(rank);
    if (call.ok()) theirs = call->ToString();
  }
  return vigil_.Condemn(MismatchError(
      absl::StrCat("rank ", vigil_.rank(), " called ", waiting_.call.ToString(), ", rank ", rank,
                   " called ", theirs, ": all ranks must make the same calls in the same order")));
}

}  // namespace syncline
