#include "backends/shm/meeting.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "backends/common/call_words.h"
#include "backends/shm/call_notes.h"
#include "core/status.h"

namespace syncline {
namespace {

// How long a mismatch may take to explain: its ranks are all here.
constexpr absl::Duration kExplaining = absl::Seconds(1);

// In the payload of all_to_all's header, whose data never go there.
struct Splits {
  int64_t most;  // Elements, of what goes from and to the rank.
  int64_t even;  // The number, if it is the same for all; else -1.
};
static_assert(sizeof(Splits) <= Header::kPayload, "fits");

Splits SplitsOf(const Call& call) {
  Splits splits = {0, call.counts[0]};
  for (const auto* list : {&call.counts, &call.expected}) {
    for (int64_t count : *list) {
      splits.most = std::max(splits.most, count);
      if (count != splits.even) splits.even = -1;
    }
  }
  return splits;
}

Splits SplitsOf(const Header& header) {
  Splits splits;
  std::memcpy(&splits, header.content.payload, sizeof(splits));
  return splits;
}

}  // namespace

absl::Status Meeting::Open() {
  const int rank = vigil_.rank();
  RankArea& area = board_.area(rank);
  Header& own = board_.header(rank, waiting_.number);
  SetWords(waiting_.call, own_);
  if (waiting_.call.kind == OpKind::kAllToAll) {
    const Splits splits = SplitsOf(waiting_.call);
    std::memcpy(own_.payload, &splits, sizeof(splits));
  }
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

int64_t Meeting::own_most() const { return SplitsOf(waiting_.call).most; }

int64_t Meeting::MostOf(int rank) const {
  return SplitsOf(board_.header(rank, waiting_.number)).most;
}

absl::StatusOr<int64_t> Meeting::AgreeOnSplits() {
  const Splits own = SplitsOf(waiting_.call);
  int64_t most = own.most;
  bool all_even = own.even >= 0;
  for (int r = 0; r < board_.size(); ++r) {
    const Splits splits = SplitsOf(board_.header(r, waiting_.number));
    most = std::max(most, splits.most);
    if (splits.even != own.even) all_even = false;
  }
  if (all_even) return most;
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Call> calls, ExchangeCalls(waiting_.deadline));
  std::vector<const Call*> pointers;
  for (const Call& call : calls) pointers.push_back(&call);
  const absl::Status status = CheckCollective(pointers);
  if (!status.ok()) return vigil_.Condemn(status);
  return most;
}

absl::StatusOr<std::vector<Call>> Meeting::ExchangeCalls(const Deadline& deadline) {
  const int rank = vigil_.rank();
  const std::vector<int64_t> words = ToWords(waiting_.call);
  std::copy(words.begin(), words.end(), board_.call(rank));
  board_.area(rank).explained.store(waiting_.number, std::memory_order_release);
  vigil_.Ring(board_.area(rank).done);
  const Waiting waiting = {waiting_.call, deadline, waiting_.number};
  std::vector<Call> calls;
  for (int r = 0; r < board_.size(); ++r) {
    const RankArea& area = board_.area(r);
    SYNCLINE_RETURN_IF_ERROR(vigil_.Await(board_.area(r).done, r, waiting, [&] {
      return area.explained.load(std::memory_order_acquire) >= waiting_.number;
    }));
    SYNCLINE_ASSIGN_OR_RETURN(
        Call call, FromWords(absl::MakeConstSpan(board_.call(r), MaxCallWords(board_.size()))));
    calls.push_back(std::move(call));
  }
  return calls;
}

absl::Status Meeting::ExplainMismatch(int rank) {
  const auto calls = ExchangeCalls(Deadline(kExplaining));
  if (!calls.ok()) return calls.status();
  std::vector<const Call*> pointers;
  for (const Call& call : *calls) pointers.push_back(&call);
  const absl::Status status = CheckCollective(pointers);
  if (!status.ok()) return vigil_.Condemn(status);
  return vigil_.Condemn(MismatchError(
      absl::StrCat("rank ", vigil_.rank(), " called ", waiting_.call.ToString(), ", rank ", rank,
                   " another: all ranks must make the same calls in the same order")));
}

}  // namespace syncline
