#include "backends/local/hub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backends/common/call.h"
#include "core/base/interrupt.h"
#include "core/base/stall.h"
#include "core/base/stall_file.h"
#include "core/base/status.h"

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
  if (deadline.AwaitInterruptibly(mutex_, absl::Condition(&settled))) {
    // What breaks the hub once all have joined is for the calls to tell.
    return joined_count_ == size_ ? absl::OkStatus() : cause_;
  }
  SYNCLINE_RETURN_IF_ERROR(BreakIfInterrupted("joining", rank));
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
  Note(rank, part.call);
  const std::shared_ptr<Meeting> meeting = meeting_;
  meeting->parts[rank] = part;
  ++meeting->arrived;
  if (meeting->arrived == size_) return Conclude(*meeting);

  // Once all have arrived, the parts are in use until the meeting is done.
  auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return meeting->done || (meeting->arrived < size_ && !cause_.ok());
  };
  StallTimer stall;
  StallNotice notice;
  const auto warn = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!stall.IsDue() || meeting->arrived == size_) return;
    WarnOfStall(rank, *meeting, stall.waited(), notice.id());
  };
  if (!deadline.AwaitInterruptibly(mutex_, absl::Condition(&settled), warn)) {
    if (meeting->arrived < size_) {
      SYNCLINE_RETURN_IF_ERROR(BreakIfInterrupted(part.call.ShortName(), rank));
      return Break(Absent(part.call, *meeting, deadline));
    }
    mutex_.Await(absl::Condition(&meeting->done));
  }
  return meeting->done ? meeting->outcome : CheckUsable(rank);
}

absl::Status Hub::Conclude(Meeting& meeting) {
  meeting_ = NewMeeting();
  mutex_.Unlock();
  std::vector<Part> parts;
  std::vector<const Call*> calls;
  for (std::optional<Part>& part : meeting.parts) parts.push_back(*std::move(part));
  for (const Part& part : parts) calls.push_back(&part.call);
  const absl::Status status = CheckCollective(calls);
  if (status.ok()) Execute(parts);
  mutex_.Lock();
  meeting.outcome = status.ok() ? status : Break(status);
  meeting.done = true;
  return meeting.outcome;
}

absl::StatusOr<int> Hub::Exchange(int rank, const Part& part, const Deadline& deadline) {
  Side mine;
  mine.rank = rank;
  mine.part = &part;
  const Channel channel = {mine.sends() ? part.call.peer : rank, part.call.tag};

  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckUsable(rank));
  Note(rank, part.call);
  std::deque<Side*>& waiting = waiting_[channel];
  const auto other = std::find_if(waiting.begin(), waiting.end(),
                                  [&](const Side* side) { return Fit(*side, mine); });
  absl::Status outcome;
  if (other != waiting.end()) {
    Side& found = **other;
    Forget(found, channel);
    outcome = Take(found, mine);
  } else {
    outcome = CheckAwaited(mine);
    if (!outcome.ok()) return Break(outcome);
    waiting.push_back(&mine);
    outcome = Await(mine, channel, deadline);
  }
  if (!outcome.ok()) return outcome;
  return mine.source;
}

bool Hub::Fit(const Side& a, const Side& b) {
  if (a.sends() == b.sends()) return false;
  const Side& sender = a.sends() ? a : b;
  const int wanted = (a.sends() ? b : a).part->call.peer;
  return wanted == kAnySource || wanted == sender.rank;
}

absl::Status Hub::Take(Side& waiting, Side& mine) {
  waiting.taken = true;
  mutex_.Unlock();
  const Side& from = mine.sends() ? mine : waiting;
  const Side& to = mine.sends() ? waiting : mine;
  const absl::Status status = CheckFits(from.part->call, from.rank, to.part->call, to.rank);
  if (status.ok()) Transfer(*from.part, *to.part);
  mutex_.Lock();
  const absl::Status outcome = status.ok() ? status : Break(status);
  waiting.source = mine.source = from.rank;
  waiting.outcome = outcome;
  waiting.done = true;
  return outcome;
}

absl::Status Hub::Await(Side& side, const Channel& channel, const Deadline& deadline) {
  auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return side.done || (!side.taken && !cause_.ok());
  };
  StallTimer stall;
  StallNotice notice;
  const auto warn = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (stall.IsDue() && !side.taken) WarnOfStall(side, stall.waited(), notice.id());
  };
  absl::Status interruption;
  if (!deadline.AwaitInterruptibly(mutex_, absl::Condition(&settled), warn)) {
    if (side.taken) {
      mutex_.Await(absl::Condition(&side.done));
    } else if (!Interruption().ok()) {
      interruption = BreakIfInterrupted(side.part->call.ShortName(), side.rank);
    } else {
      Break(Unmatched(side, deadline)).IgnoreError();
    }
  }
  if (side.done) return side.outcome;
  Forget(side, channel);
  return interruption.ok() ? CheckUsable(side.rank) : interruption;
}

void Hub::Forget(const Side& side, const Channel& channel) {
  std::deque<Side*>& waiting = waiting_[channel];
  waiting.erase(std::find(waiting.begin(), waiting.end(), &side));
  if (waiting.empty()) waiting_.erase(channel);
}

void Hub::Leave(int rank, const absl::Status& cause) {
  absl::MutexLock lock(&mutex_);
  if (!cause_.ok() || !left_[rank].ok()) return;  // The first cause stays.
  left_[rank] = cause;
  if (joined_count_ < size_ || meeting_->arrived > 0) Break(HasLeft(rank, cause)).IgnoreError();
  for (const auto& [channel, sides] : waiting_) {
    for (const Side* side : sides) {
      const absl::Status awaited = side->rank == rank ? HasLeft(rank, cause) : CheckAwaited(*side);
      if (!awaited.ok()) Break(awaited).IgnoreError();
    }
  }
}

absl::Status Hub::CheckUsable(int rank) const { return left_[rank].ok() ? cause_ : left_[rank]; }

absl::Status Hub::CheckAwaited(const Side& side) const {
  const int peer = side.part->call.peer;
  if (peer != kAnySource) return left_[peer].ok() ? left_[peer] : HasLeft(peer, left_[peer]);
  std::vector<std::string> causes;
  for (int r = 0; r < size_; ++r) {
    if (r == side.rank) continue;
    if (left_[r].ok()) return absl::OkStatus();
    causes.push_back(std::string(HasLeft(r, left_[r]).message()));
  }
  return BackendError(absl::StrCat("nobody is left to send: ", absl::StrJoin(causes, "; ")));
}

absl::Status Hub::Absent(const Call& call, const Meeting& meeting, const Deadline& deadline) const {
  std::vector<int> absent;
  std::vector<std::string> doing;
  for (int r = 0; r < size_; ++r) {
    if (meeting.parts[r].has_value()) continue;
    absent.push_back(r);
    doing.push_back(Doing(r));
  }
  return TimeoutError(absl::StrCat(call.ShortName(), ": ", NameRanks(absent), " ", Have(absent),
                                   " not arrived", After(deadline), "; ",
                                   absl::StrJoin(doing, ", ")));
}

absl::Status Hub::Unmatched(const Side& side, const Deadline& deadline) const {
  const Call& call = side.part->call;
  std::string who = "no rank has";
  std::vector<std::string> doing;
  if (call.peer == kAnySource) {
    for (int r = 0; r < size_; ++r) {
      if (r != side.rank) doing.push_back(Doing(r));
    }
  } else {
    who = absl::StrCat("rank ", call.peer, " has not");
    doing.push_back(Doing(call.peer));
  }
  return TimeoutError(absl::StrCat(call.ShortName(), ": ", who, " made the matching call (tag ",
                                   call.tag, ")", After(deadline), "; ",
                                   absl::StrJoin(doing, ", ")));
}

void Hub::WarnOfStall(int rank, const Meeting& meeting, absl::Duration waited,
                      int64_t notice) const {
  bool speaks = true;  // No lower rank waits.
  Stall stall;
  stall.rank = rank;
  stall.operation = meeting.parts[rank]->call.ShortName();
  stall.waited = waited;
  std::vector<std::string> doing;
  for (int r = 0; r < size_; ++r) {
    if (meeting.parts[r].has_value()) {
      if (r < rank) speaks = false;
    } else {
      stall.missing.push_back(r);
      doing.push_back(Doing(r));
    }
  }
  stall.text = absl::StrCat("rank ", rank, " has waited for ", absl::FormatDuration(waited), " in ",
                            stall.operation, "; missing: ", NameRanks(stall.missing), ": ",
                            absl::StrJoin(doing, ", "));
  ReportStall(notice, stall, speaks);
}

void Hub::WarnOfStall(const Side& side, absl::Duration waited, int64_t notice) const {
  const Call& call = side.part->call;
  Stall stall;
  stall.rank = side.rank;
  stall.operation = call.ShortName();
  stall.waited = waited;
  std::string who = "a message from any rank";
  if (call.peer != kAnySource) {
    stall.missing.push_back(call.peer);
    who = absl::StrCat("rank ", call.peer, ": ", Doing(call.peer));
  }
  stall.text = absl::StrCat("rank ", side.rank, " has waited for ", absl::FormatDuration(waited),
                            " in ", stall.operation, "; missing: ", who);
  ReportStall(notice, stall, /*speaks=*/true);
}

void Hub::Note(int rank, const Call& call) {
  Call name{call.kind, call.sequence};
  name.peer = call.peer;
  name.name = call.name;
  last_[rank] = std::move(name);
}

std::string Hub::Doing(int rank) const {
  for (const auto& [channel, sides] : waiting_) {
    for (const Side* side : sides) {
      if (side->rank != rank) continue;
      return absl::StrCat("rank ", rank, " waits in ", side->part->call.ShortName());
    }
  }
  if (const std::optional<Part>& part = meeting_->parts[rank]; part.has_value()) {
    return absl::StrCat("rank ", rank, " waits in ", part->call.ShortName());
  }
  if (!last_[rank].has_value()) return absl::StrCat("rank ", rank, " has made no call yet");
  return absl::StrCat("rank ", rank, "'s last call was ", last_[rank]->ShortName());
}

absl::Status Hub::BreakIfInterrupted(absl::string_view what, int rank) {
  const absl::Status interruption = Interruption();
  if (interruption.ok()) return interruption;
  Break(BackendError(absl::StrCat(what, ": rank ", rank, " was ", interruption.message())))
      .IgnoreError();
  return interruption;
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
