#include "backends/local/hub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backends/common/call.h"
#include "core/status.h"

namespace syncline {
namespace {

absl::Status HasLeft(int rank, const absl::Status& cause) {
  return BackendError(absl::StrCat("rank ", rank, " has left the group: ", cause.message()));
}

std::string After(const Deadline& deadline) {
  return absl::StrCat(" after ", absl::FormatDuration(deadline.timeout()));
}

}  // namespace

absl::Status Hub::Join(int rank, const Deadline& deadline) {
  absl::MutexLock lock(&mutex_);
  if (joined_[rank]) {
    return Break(BackendError(absl::StrCat("rank ", rank, " has joined the group twice")));
  }
  joined_[rank] = true;
  ++joined_count_;
  auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return joined_count_ == size_ || !cause_.ok();
  };
  if (deadline.Await(mutex_, absl::Condition(&settled))) {
    // What breaks the hub once all have joined is for the calls to tell.
    return joined_count_ == size_ ? absl::OkStatus() : cause_;
  }
  std::vector<int> absent;
  for (int r = 0; r < size_; ++r) {
    if (!joined_[r]) absent.push_back(r);
  }
  return Break(TimeoutError(absl::StrCat(NameRanks(absent), " of ", size_, " ", Have(absent),
                                         " not joined the group", After(deadline))));
}

absl::Status Hub::Meet(int rank, const Part& part, const Deadline& deadline) {
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckUsable(rank));
  for (int r = 0; r < size_; ++r) {
    if (!left_[r].ok()) return Break(HasLeft(r, left_[r]));
  }
  const std::shared_ptr<Meeting> meeting = meeting_;
  meeting->parts[rank] = part;
  ++meeting->arrived;
  if (meeting->arrived == size_) return Conclude(*meeting);

  // Once all have arrived, the parts are in use until the meeting is done.
  auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return meeting->done || (meeting->arrived < size_ && !cause_.ok());
  };
  if (!deadline.Await(mutex_, absl::Condition(&settled))) {
    if (meeting->arrived < size_) {
      std::vector<int> absent;
      for (int r = 0; r < size_; ++r) {
        if (!meeting->parts[r].has_value()) absent.push_back(r);
      }
      return Break(TimeoutError(absl::StrCat(part.call.ShortName(), ": ", NameRanks(absent), " ",
                                             Have(absent), " not arrived", After(deadline))));
    }
    mutex_.Await(absl::Condition(&meeting->done));
  }
  return meeting->done ? meeting->outcome : CheckUsable(rank);
}

absl::Status Hub::Conclude(Meeting& meeting) {
  meeting_ = NewMeeting();
  mutex_.Unlock();
  std::vector<Part> parts;
  for (const std::optional<Part>& part : meeting.parts) parts.push_back(*part);
  const absl::Status status = CheckSame(parts);
  if (status.ok()) Execute(parts);
  mutex_.Lock();
  meeting.outcome = status.ok() ? status : Break(status);
  meeting.done = true;
  return meeting.outcome;
}

absl::Status Hub::Exchange(int rank, const Part& part, const Deadline& deadline) {
  const bool sends = part.call.kind == OpKind::kSend;
  const int peer = part.call.peer;
  const Channel channel = {sends ? rank : peer, sends ? peer : rank, part.call.tag};
  Side mine;
  mine.rank = rank;
  mine.part = &part;

  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckUsable(rank));
  std::deque<Side*>& waiting = waiting_[channel];
  if (!waiting.empty() && waiting.front()->part->call.kind != part.call.kind) {
    Side* const other = waiting.front();
    waiting.pop_front();
    if (waiting.empty()) waiting_.erase(channel);
    return Take(*other, mine);
  }
  if (!left_[peer].ok()) return Break(HasLeft(peer, left_[peer]));
  waiting.push_back(&mine);
  return Await(mine, channel, deadline);
}

absl::Status Hub::Take(Side& waiting, const Side& mine) {
  waiting.taken = true;
  mutex_.Unlock();
  const bool sends = mine.part->call.kind == OpKind::kSend;
  const Side& from = sends ? mine : waiting;
  const Side& to = sends ? waiting : mine;
  const absl::Status status = CheckFits(from.part->call, from.rank, to.part->call, to.rank);
  if (status.ok()) Transfer(*from.part, *to.part);
  mutex_.Lock();
  const absl::Status outcome = status.ok() ? status : Break(status);
  waiting.outcome = outcome;
  waiting.done = true;
  return outcome;
}

absl::Status Hub::Await(Side& side, const Channel& channel, const Deadline& deadline) {
  auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return side.done || (!side.taken && !cause_.ok());
  };
  if (!deadline.Await(mutex_, absl::Condition(&settled))) {
    if (side.taken) {
      mutex_.Await(absl::Condition(&side.done));
    } else {
      const int peer = side.part->call.peer;
      Break(TimeoutError(absl::StrCat(side.part->call.ShortName(), ": rank ", peer, " has not ",
                                      "made the matching call (tag ", side.part->call.tag, ")",
                                      After(deadline))))
          .IgnoreError();
    }
  }
  if (side.done) return side.outcome;
  std::deque<Side*>& waiting = waiting_[channel];
  waiting.erase(std::find(waiting.begin(), waiting.end(), &side));
  if (waiting.empty()) waiting_.erase(channel);
  return CheckUsable(side.rank);
}

void Hub::Leave(int rank, const absl::Status& cause) {
  absl::MutexLock lock(&mutex_);
  if (!cause_.ok() || !left_[rank].ok()) return;  // The first cause stays.
  left_[rank] = cause;
  if (IsAwaited(rank)) Break(HasLeft(rank, cause)).IgnoreError();
}

absl::Status Hub::CheckUsable(int rank) const { return left_[rank].ok() ? cause_ : left_[rank]; }

// Whether somebody now waits for `rank`, or `rank` itself waits.
bool Hub::IsAwaited(int rank) const {
  if (joined_count_ < size_ || meeting_->arrived > 0) return true;
  for (const auto& [channel, sides] : waiting_) {
    const auto& [from, to, tag] = channel;
    if (!sides.empty() && (from == rank || to == rank)) return true;
  }
  return false;
}

absl::Status Hub::Break(const absl::Status& cause) {
  if (cause_.ok()) cause_ = cause;
  return cause_;
}

std::shared_ptr<Hub::Meeting> Hub::NewMeeting() const {
  auto meeting = std::make_shared<Meeting>();
  meeting->parts.resize(size_);
  return meeting;
}

}  // namespace syncline
