#include "backends/nccl/nccl_group.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "backends/common/stall_reporter.h"
#include "core/base/liveness.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::nccl {
namespace {

using backends::CallDescription;

// How often a call that waits for room looks again.
constexpr absl::Duration kRoomInterval = absl::Microseconds(100);

// How long a call that failed waits for its work on the device to end.
constexpr absl::Duration kQuietTimeout = absl::Seconds(2);

}  // namespace

NcclGroup::NcclGroup(tensor::Segment memory, backends::PeerTable peers,
                     backends::PeerProcesses processes, MismatchCheck check)
    : memory_(std::move(memory)),
      processes_(std::move(processes)),
      board_(memory_.data(), std::move(peers), check) {}

int NcclGroup::NumberOf(const Device& device) {
  absl::MutexLock lock(&mutex_);
  const auto found = std::find(devices_.begin(), devices_.end(), device);
  if (found != devices_.end()) return static_cast<int>(found - devices_.begin());
  devices_.push_back(device);
  return static_cast<int>(devices_.size()) - 1;
}

absl::Status NcclGroup::Publish(absl::Span<const Collective> collectives,
                                const CallContext& context, PublishedCall& call) {
  for (const Collective& collective : collectives) {
    CallContext one = context;
    one.collective = &collective;
    one.mismatch_check = board_.compares() ? context.mismatch_check : MismatchCheck::kOff;
    const bool is_message = IsP2p(collective.kind);
    const Channel channel = collective.kind == OpKind::kSend ? Channel{rank(), collective.peer}
                                                             : Channel{collective.peer, rank()};
    while (is_message ? !board_.HasRoom(channel) : !board_.HasRoom()) {
      // What was published before counts for the comparisons that make room.
      Verdict(call);
      SYNCLINE_RETURN_IF_ERROR(Check(call));
      if (const absl::Status interruption = CheckInterrupt(); !interruption.ok()) {
        Fail(WithRanks(BackendError(
                           absl::StrCat(peers().Describe(rank()), " was ", interruption.message())),
                       {rank()}),
             &call.description)
            .IgnoreError();
        return interruption;
      }
      absl::SleepFor(kRoomInterval);
    }
    if (!is_message) {
      FingerprintBoard::DeviceUse use;
      if (collective.kind != OpKind::kBarrier) {
        use.device = collective.tensor_device();
        use.number = NumberOf(use.device);
      }
      call.last_collective = board_.Publish(one, use);
      continue;
    }
    const uint64_t number = board_.Publish(channel, one);
    const auto same = std::find_if(call.messages.begin(), call.messages.end(), [&](const auto& m) {
      return m.channel.src == channel.src && m.channel.dst == channel.dst;
    });
    if (same == call.messages.end()) {
      call.messages.push_back({channel, number, 1});
    } else {
      same->last = number;
      ++same->count;
    }
  }
  return absl::OkStatus();
}

std::optional<absl::Status> NcclGroup::Verdict(const PublishedCall& call) {
  bool is_known = true;
  const auto look = [&](const std::optional<absl::Status>& compared) {
    is_known &= compared.has_value();
    return compared.value_or(absl::OkStatus());
  };
  absl::Status mismatch;
  if (call.last_collective > 0) mismatch = look(board_.Compare(call.last_collective));
  for (const auto& [channel, last, count] : call.messages) {
    if (mismatch.ok()) mismatch = look(board_.Compare(channel, last));
  }
  if (!mismatch.ok()) return Fail(mismatch, &call.description);
  if (!is_known) return std::nullopt;
  return absl::OkStatus();
}

bool NcclGroup::HasAgreed(const PublishedCall& call) {
  const auto has_agreed = [](const std::optional<absl::Status>& compared) {
    return compared.has_value() && compared->ok();
  };
  if (call.last_collective > 0 && !has_agreed(board_.Compare(call.last_collective))) return false;
  return std::all_of(call.messages.begin(), call.messages.end(), [&](const auto& messages) {
    return has_agreed(board_.Compare(messages.channel, messages.last));
  });
}

absl::Status NcclGroup::Check(const PublishedCall& call) {
  // In this order: the failure that another rank has reported stays the first cause; ranks that
  // disagree may be late or gone because of that; and a rank that has left was free to end its
  // process afterwards.
  if (is_over()) return Failure(&call.description);
  const std::optional<absl::Status> verdict = Verdict(call);
  if (verdict.has_value() && !verdict->ok()) return *verdict;
  absl::Status status = CheckLeft(call);
  if (status.ok()) status = CheckDead();
  if (status.ok() && call.deadline.Expired()) status = DescribeTimeout(call);
  if (!status.ok()) return Fail(status, &call.description);
  WarnOfStall(call);
  return status;
}

void NcclGroup::Finish(const PublishedCall& call) {
  for (const auto& messages : call.messages) {
    board_.FinishMessages(messages.count, call.description);
  }
  if (call.last_collective > 0) board_.Finish(call.last_collective, call.description);
}

void NcclGroup::CheckPeers() {
  if (is_over()) return;
  if (const absl::Status dead = CheckDead(); !dead.ok()) Fail(dead).IgnoreError();
}

absl::Status NcclGroup::CheckLeft(const PublishedCall& call) const {
  std::vector<int> left;
  std::vector<std::string> reasons;
  const auto look = [&](int other, bool has_published) {
    if (other == rank() || has_published) return;
    const std::optional<std::string> reason = board_.LeaveReason(other);
    if (!reason.has_value()) return;
    left.push_back(other);
    reasons.push_back(absl::StrCat(peers().Describe(other), " has left the group: ", *reason));
  };
  if (call.last_collective > 0) {
    for (int other = 0; other < size(); ++other) {
      look(other, board_.Published(other) >= call.last_collective);
    }
  }
  for (const auto& [channel, last, count] : call.messages) {
    const int other = channel.src == rank() ? channel.dst : channel.src;
    look(other, board_.Published(channel, other) >= last);
  }
  if (left.empty()) return absl::OkStatus();
  return WithOperation(WithRanks(BackendError(absl::StrCat(call.description.ToString(), ": ",
                                                           absl::StrJoin(reasons, "; "))),
                                 std::move(left)),
                       call.description.OperationOf(rank()));
}

absl::Status NcclGroup::CheckDead() {
  {
    absl::MutexLock lock(&mutex_);
    if (!lost_.ok()) return lost_;
    const absl::Time now = absl::Now();
    if (now < next_check_) return absl::OkStatus();
    next_check_ = now + kPeerInterval;
  }
  // All ranks count, not only those of the call, which may themselves wait for the dead. Ranks that
  // have left were free to end.
  return processes_.Check([&](int other) { return !board_.LeaveReason(other).has_value(); });
}

absl::Status NcclGroup::CheckLeaving() {
  if (board_.has_failed()) return board_.failure();
  return CheckDead();
}

std::vector<int> NcclGroup::MissingRanks(const PublishedCall& call) const {
  std::vector<int> missing;
  const auto look = [&](int other, bool has_published) {
    if (other != rank() && !has_published) missing.push_back(other);
  };
  if (call.last_collective > 0) {
    for (int other = 0; other < size(); ++other) {
      look(other, board_.Published(other) >= call.last_collective);
    }
  }
  for (const auto& [channel, last, count] : call.messages) {
    const int other = channel.src == rank() ? channel.dst : channel.src;
    look(other, board_.Published(channel, other) >= last);
  }
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return missing;
}

std::vector<int> NcclGroup::LateRanks(const PublishedCall& call) const {
  std::vector<int> late = MissingRanks(call);
  if (!late.empty()) return late;
  // All have arrived, and the work has not ended: a process may have been stopped on the way.
  for (int other = 0; other < size(); ++other) {
    if (other != rank() && peers().LivenessOf(other) == base::Liveness::kStopped) {
      late.push_back(other);
    }
  }
  return late;
}

bool NcclGroup::LowerRankWaits(const PublishedCall& call) const {
  for (int other = 0; call.last_collective > 0 && other < rank(); ++other) {
    if (board_.Published(other) >= call.last_collective &&
        board_.Finished(other) < call.last_collective) {
      return true;
    }
  }
  return false;
}

void NcclGroup::WarnOfStall(const PublishedCall& call) const {
  if (call.stall == nullptr) call.stall = std::make_shared<CallStall>();
  if (!call.stall->timer.IsDue()) return;
  base::Stall stall;
  stall.missing = MissingRanks(call);
  // All have made it: what is before it on a stream may take long.
  if (stall.missing.empty()) return;
  stall.rank = rank();
  stall.operation = call.description.ToString();
  stall.waited = call.stall->timer.waited();
  std::map<std::string, std::vector<int>> missing;
  for (const int other : stall.missing) missing[board_.LastActivity(other)].push_back(other);
  stall.text = backends::StallText(peers(), stall.operation, stall.waited, missing);
  base::ReportStall(call.stall->notice.id(), stall, !LowerRankWaits(call));
}

absl::Status NcclGroup::DescribeTimeout(const PublishedCall& call) const {
  const std::string after = absl::FormatDuration(call.deadline.timeout());
  const std::vector<int> ranks = LateRanks(call);
  std::vector<std::string> parts;
  for (const int other : ranks) {
    parts.push_back(absl::StrCat(peers().Describe(other), " has not arrived after ", after, "; ",
                                 board_.LastActivity(other)));
  }
  if (parts.empty()) {
    parts.push_back(absl::StrCat("not complete after ", after,
                                 " though all its ranks had arrived: allow more time, or look for "
                                 "what keeps a device busy"));
  }
  return WithOperation(WithRanks(TimeoutError(absl::StrCat(call.description.ToString(), ": ",
                                                           absl::StrJoin(parts, "; "))),
                                 ranks),
                       call.description.OperationOf(rank()));
}

absl::Status NcclGroup::Fail(const absl::Status& cause, const CallDescription* call) {
  if (!is_closed_.load()) board_.Fail(cause);
  const absl::Status failure = Failure(call);
  return failure.ok() ? cause : failure;
}

absl::Status NcclGroup::Failure(const CallDescription* call) {
  absl::MutexLock lock(&mutex_);
  if (!cause_.ok() || !board_.has_failed()) return cause_;
  cause_ = board_.failure();
  // The timeout of another rank's call ends this one before its own time.
  if (call != nullptr && KindOf(cause_) == ErrorKind::kTimeout && board_.reporter() != rank()) {
    cause_ = WithOperation(
        Annotate(cause_, absl::StrCat(call->ToString(), ": ", peers().Describe(board_.reporter()),
                                      " reported")),
        call->OperationOf(rank()));
  }
  return cause_;
}

void NcclGroup::Close(const absl::Status& cause, absl::FunctionRef<bool()> has_calls) {
  {
    absl::MutexLock lock(&mutex_);
    if (is_closed_.exchange(true)) return;
    if (cause_.ok()) cause_ = board_.has_failed() ? board_.failure() : cause;
  }
  // Both this order and that of a call, which counts itself before it looks at is_closed_, are
  // sequentially consistent: either this sees the call, or the call sees the end.
  if (has_calls()) {
    board_.Fail(WithRanks(BackendError(absl::StrCat(peers().Describe(rank()),
                                                    " has left the group: ", cause.message())),
                          {rank()}));
  } else {
    board_.Leave(cause.message());
  }
  board_.Wake();
}

void NcclGroup::SetLost(const absl::Status& lost) {
  absl::MutexLock lock(&mutex_);
  lost_ = lost;
}

void NcclGroup::AwaitQuiet() {
  absl::MutexLock lock(&mutex_);
  Deadline(kQuietTimeout).Await(mutex_, absl::Condition(&is_quiet_));
}

}  // namespace syncline::nccl
