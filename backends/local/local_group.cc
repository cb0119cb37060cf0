#include "backends/local/local_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backends/common/call_description.h"
#include "core/base/stall.h"
#include "core/base/stall_file.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::local {
namespace {

// `rank` is at fault, unless it left because of others.
absl::Status HasLeft(int rank, const absl::Status& cause) {
  std::vector<int> ranks = RanksOf(cause);
  if (ranks.empty()) ranks = {rank};
  return WithRanks(
      BackendError(absl::StrCat("rank ", rank, " has left the group: ", cause.message())),
      std::move(ranks));
}

// `error` about `call` of `rank`, with whose ShortName it begins, and the ranks at fault.
absl::Status About(const backends::CallDescription& call, int rank, const absl::Status& error,
                   std::vector<int> ranks) {
  ErrorOrigin origin;
  origin.operations = {call.OperationOf(rank)};
  // That of a send or recv tells the other rank.
  origin.lacks_arguments = !IsP2p(call.kind);
  origin.ranks = std::move(ranks);
  return WithOrigin(error, std::move(origin));
}

std::string After(const Deadline& deadline) {
  return absl::StrCat(" after ", absl::FormatDuration(deadline.timeout()));
}

}  // namespace

absl::Status LocalGroup::Join(int rank, const Deadline& deadline) {
  absl::MutexLock lock(&mutex_);
  if (joined_[rank]) {
    return Fail(WithRanks(BackendError(absl::StrCat("rank ", rank, " has joined the group twice")),
                          {rank}));
  }
  joined_[rank] = true;
  ++joined_count_;
  auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return joined_count_ == size_ || !cause_.ok();
  };
  if (deadline.AwaitInterruptibly(mutex_, absl::Condition(&settled))) {
    // What fails the group once all have joined is for the calls to tell.
    return joined_count_ == size_ ? absl::OkStatus() : cause_;
  }
  SYNCLINE_RETURN_IF_ERROR(FailIfInterrupted(nullptr, rank));
  std::vector<int> absent;
  for (int r = 0; r < size_; ++r) {
    if (!joined_[r]) absent.push_back(r);
  }
  const absl::Status late =
      TimeoutError(absl::StrCat(base::NameRanks(absent), " of ", size_, " ", backends::Have(absent),
                                " not joined the group", After(deadline)));
  return Fail(WithRanks(late, absent));
}

absl::Status LocalGroup::RunCollective(int rank, const CallContext& context) {
  const RankArgs args(context);
  const Deadline& deadline = context.deadline;
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckUsable(rank));
  for (int r = 0; r < size_; ++r) {
    if (!left_[r].ok()) return Fail(HasLeft(r, left_[r]));
  }
  RecordCall(rank, args.call);
  const std::shared_ptr<PendingCollective> pending = pending_;
  pending->args[rank] = args;
  ++pending->arrived;
  if (pending->arrived == size_) return Execute(*pending);

  // Once all have arrived, the parts are in use until the pending is done.
  auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return pending->done || (pending->arrived < size_ && !cause_.ok());
  };
  base::StallTimer stall;
  base::StallNotice notice;
  const auto warn = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!stall.IsDue() || pending->arrived == size_) return;
    WarnOfStall(rank, *pending, stall.waited(), notice.id());
  };
  if (!deadline.AwaitInterruptibly(mutex_, absl::Condition(&settled), warn)) {
    if (pending->arrived < size_) {
      SYNCLINE_RETURN_IF_ERROR(FailIfInterrupted(&args.call, rank));
      return Fail(AbsentError(rank, args.call, *pending, deadline));
    }
    mutex_.Await(absl::Condition(&pending->done));
  }
  return pending->done ? pending->outcome : CheckUsable(rank);
}

absl::Status LocalGroup::Execute(PendingCollective& pending) {
  pending_ = NewPendingCollective();
  mutex_.Unlock();
  std::vector<const backends::CallDescription*> calls;
  std::vector<const Collective*> collectives;
  for (const std::optional<RankArgs>& args : pending.args) {
    calls.push_back(&args->call);
    collectives.push_back(&args->collective);
  }
  const absl::Status status = backends::CheckCollective(calls);
  if (status.ok()) RunReference(collectives);
  mutex_.Lock();
  pending.outcome = status.ok() ? status : Fail(status);
  pending.done = true;
  return pending.outcome;
}

absl::StatusOr<int> LocalGroup::MatchMessage(int rank, const CallContext& context) {
  const RankArgs args(context);
  PendingMessage mine;
  mine.rank = rank;
  mine.args = &args;
  const Channel channel = {mine.sends() ? args.call.peer : rank, args.call.tag};

  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckUsable(rank));
  RecordCall(rank, args.call);
  std::deque<PendingMessage*>& waiting = waiting_[channel];
  const auto other = std::find_if(waiting.begin(), waiting.end(),
                                  [&](const PendingMessage* side) { return Matches(*side, mine); });
  absl::Status outcome;
  if (other != waiting.end()) {
    PendingMessage& found = **other;
    Withdraw(found, channel);
    outcome = Deliver(found, mine);
  } else {
    outcome = CheckAwaited(mine);
    if (!outcome.ok()) return Fail(outcome);
    waiting.push_back(&mine);
    outcome = Await(mine, channel, context.deadline);
  }
  if (!outcome.ok()) return outcome;
  return mine.source;
}

bool LocalGroup::Matches(const PendingMessage& a, const PendingMessage& b) {
  if (a.sends() == b.sends()) return false;
  const PendingMessage& sender = a.sends() ? a : b;
  const int wanted = (a.sends() ? b : a).args->call.peer;
  return wanted == kAnySource || wanted == sender.rank;
}

absl::Status LocalGroup::Deliver(PendingMessage& waiting, PendingMessage& mine) {
  waiting.taken = true;
  mutex_.Unlock();
  const PendingMessage& from = mine.sends() ? mine : waiting;
  const PendingMessage& to = mine.sends() ? waiting : mine;
  const absl::Status status =
      backends::CheckFits(from.args->call, from.rank, to.args->call, to.rank);
  if (status.ok()) CopyMessage(from.args->collective, to.args->collective);
  mutex_.Lock();
  const absl::Status outcome = status.ok() ? status : Fail(status);
  waiting.source = mine.source = from.rank;
  waiting.outcome = outcome;
  waiting.done = true;
  return outcome;
}

absl::Status LocalGroup::Await(PendingMessage& side, const Channel& channel,
                               const Deadline& deadline) {
  auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return side.done || (!side.taken && !cause_.ok());
  };
  base::StallTimer stall;
  base::StallNotice notice;
  const auto warn = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (stall.IsDue() && !side.taken) WarnOfStall(side, stall.waited(), notice.id());
  };
  absl::Status interruption;
  if (!deadline.AwaitInterruptibly(mutex_, absl::Condition(&settled), warn)) {
    if (side.taken) {
      mutex_.Await(absl::Condition(&side.done));
    } else if (!Interruption().ok()) {
      interruption = FailIfInterrupted(&side.args->call, side.rank);
    } else {
      Fail(UnmatchedError(side, deadline)).IgnoreError();
    }
  }
  if (side.done) return side.outcome;
  Withdraw(side, channel);
  return interruption.ok() ? CheckUsable(side.rank) : interruption;
}

void LocalGroup::Withdraw(const PendingMessage& side, const Channel& channel) {
  std::deque<PendingMessage*>& waiting = waiting_[channel];
  waiting.erase(std::find(waiting.begin(), waiting.end(), &side));
  if (waiting.empty()) waiting_.erase(channel);
}

void LocalGroup::Leave(int rank, const absl::Status& cause) {
  absl::MutexLock lock(&mutex_);
  if (!cause_.ok() || !left_[rank].ok()) return;  // The first cause stays.
  left_[rank] = cause;
  if (joined_count_ < size_ || pending_->arrived > 0) Fail(HasLeft(rank, cause)).IgnoreError();
  for (const auto& [channel, sides] : waiting_) {
    for (const PendingMessage* side : sides) {
      const absl::Status awaited = side->rank == rank ? HasLeft(rank, cause) : CheckAwaited(*side);
      if (!awaited.ok()) Fail(awaited).IgnoreError();
    }
  }
}

absl::Status LocalGroup::CheckUsable(int rank) const {
  return left_[rank].ok() ? cause_ : left_[rank];
}

absl::Status LocalGroup::CheckAwaited(const PendingMessage& side) const {
  const int peer = side.args->call.peer;
  if (peer != kAnySource) return left_[peer].ok() ? left_[peer] : HasLeft(peer, left_[peer]);
  std::vector<int> at_fault;
  std::vector<std::string> causes;
  for (int r = 0; r < size_; ++r) {
    if (r == side.rank) continue;
    if (left_[r].ok()) return absl::OkStatus();
    const absl::Status has_left = HasLeft(r, left_[r]);
    for (int rank : RanksOf(has_left)) at_fault.push_back(rank);
    causes.push_back(std::string(has_left.message()));
  }
  return WithRanks(
      BackendError(absl::StrCat("nobody is left to send: ", absl::StrJoin(causes, "; "))),
      std::move(at_fault));
}

absl::Status LocalGroup::AbsentError(int rank, const backends::CallDescription& call,
                                     const PendingCollective& pending,
                                     const Deadline& deadline) const {
  std::vector<int> absent;
  std::vector<std::string> doing;
  for (int r = 0; r < size_; ++r) {
    if (pending.args[r].has_value()) continue;
    absent.push_back(r);
    doing.push_back(LastActivity(r));
  }
  const absl::Status late = TimeoutError(
      absl::StrCat(call.ShortName(), ": ", base::NameRanks(absent), " ", backends::Have(absent),
                   " not arrived", After(deadline), "; ", absl::StrJoin(doing, ", ")));
  return About(call, rank, late, std::move(absent));
}

absl::Status LocalGroup::UnmatchedError(const PendingMessage& side,
                                        const Deadline& deadline) const {
  const backends::CallDescription& call = side.args->call;
  std::string who = "no rank has";
  std::vector<int> absent;
  if (call.peer == kAnySource) {
    for (int r = 0; r < size_; ++r) {
      if (r != side.rank) absent.push_back(r);
    }
  } else {
    who = absl::StrCat("rank ", call.peer, " has not");
    absent.push_back(call.peer);
  }
  std::vector<std::string> doing;
  for (int r : absent) doing.push_back(LastActivity(r));
  const absl::Status late =
      TimeoutError(absl::StrCat(call.ShortName(), ": ", who, " made the matching call (tag ",
                                call.tag, ")", After(deadline), "; ", absl::StrJoin(doing, ", ")));
  return About(call, side.rank, late, std::move(absent));
}

void LocalGroup::WarnOfStall(int rank, const PendingCollective& pending, absl::Duration waited,
                             int64_t notice) const {
  bool speaks = true;  // No lower rank waits.
  base::Stall stall;
  stall.rank = rank;
  stall.operation = pending.args[rank]->call.ShortName();
  stall.waited = waited;
  std::vector<std::string> doing;
  for (int r = 0; r < size_; ++r) {
    if (pending.args[r].has_value()) {
      if (r < rank) speaks = false;
    } else {
      stall.missing.push_back(r);
      doing.push_back(LastActivity(r));
    }
  }
  stall.text = absl::StrCat("rank ", rank, " has waited for ", absl::FormatDuration(waited), " in ",
                            stall.operation, "; missing: ", base::NameRanks(stall.missing), ": ",
                            absl::StrJoin(doing, ", "));
  base::ReportStall(notice, stall, speaks);
}

void LocalGroup::WarnOfStall(const PendingMessage& side, absl::Duration waited,
                             int64_t notice) const {
  const backends::CallDescription& call = side.args->call;
  base::Stall stall;
  stall.rank = side.rank;
  stall.operation = call.ShortName();
  stall.waited = waited;
  std::string who = "a message from any rank";
  if (call.peer != kAnySource) {
    stall.missing.push_back(call.peer);
    who = absl::StrCat("rank ", call.peer, ": ", LastActivity(call.peer));
  }
  stall.text = absl::StrCat("rank ", side.rank, " has waited for ", absl::FormatDuration(waited),
                            " in ", stall.operation, "; missing: ", who);
  base::ReportStall(notice, stall, /*speaks=*/true);
}

void LocalGroup::RecordCall(int rank, const backends::CallDescription& call) {
  backends::CallDescription name(call.kind, call.sequence);
  name.peer = call.peer;
  name.name = call.name;
  last_[rank] = std::move(name);
}

std::string LocalGroup::LastActivity(int rank) const {
  for (const auto& [channel, sides] : waiting_) {
    for (const PendingMessage* side : sides) {
      if (side->rank != rank) continue;
      return absl::StrCat("rank ", rank, " waits in ", side->args->call.ShortName());
    }
  }
  if (const std::optional<RankArgs>& args = pending_->args[rank]; args.has_value()) {
    return absl::StrCat("rank ", rank, " waits in ", args->call.ShortName());
  }
  if (!last_[rank].has_value()) return absl::StrCat("rank ", rank, " has made no call yet");
  return absl::StrCat("rank ", rank, "'s last call was ", last_[rank]->ShortName());
}

absl::Status LocalGroup::FailIfInterrupted(const backends::CallDescription* call, int rank) {
  const absl::Status interruption = Interruption();
  if (interruption.ok()) return interruption;
  const std::string what = call == nullptr ? "joining" : call->ShortName();
  const absl::Status failure =
      BackendError(absl::StrCat(what, ": rank ", rank, " was ", interruption.message()));
  Fail(call == nullptr ? WithRanks(failure, {rank}) : About(*call, rank, failure, {rank}))
      .IgnoreError();
  return interruption;
}

absl::Status LocalGroup::Fail(const absl::Status& cause) {
  if (cause_.ok()) cause_ = cause;
  return cause_;
}

std::shared_ptr<LocalGroup::PendingCollective> LocalGroup::NewPendingCollective() const {
  auto pending = std::make_shared<PendingCollective>();
  pending->args.resize(size_);
  return pending;
}

}  // namespace syncline::local
