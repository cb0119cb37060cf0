#include "backends/shm/vigil.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "backends/common/stall_reporter.h"
#include "backends/shm/call_notes.h"
#include "core/base/interrupt.h"
#include "core/base/stall.h"
#include "core/base/stall_file.h"
#include "core/base/status.h"
#include "core/group/backend.h"

namespace syncline {
namespace {

// Some microseconds of looking at a cache line. No more: the peer may be waiting for this core.
constexpr int kSpins = 300;

// After that, and from the beginning where ranks share cores: how long a rank only offers its core
// to others, which costs less than to sleep and be woken.
constexpr auto kYielding = std::chrono::milliseconds(1);

// How long to sleep before looking whether the peers live.
constexpr absl::Duration kNap = absl::Milliseconds(10);

// How long a verdict may take to write for one who lives.
constexpr absl::Duration kWriting = absl::Milliseconds(100);

bool Membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

Vigil::Vigil(char* memory, PeerTable roster, PeerWatchdog watchdog)
    : roster_(std::move(roster)),
      watchdog_(std::move(watchdog)),
      board_(memory, roster_.size()),
      rank_(roster_.rank()),
      has_membarrier_(Membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)) {}

absl::Status Vigil::Join(const Deadline& deadline) {
  RankArea& own = board_.area(rank_);
  if (!has_membarrier_) own.needs_fence.store(1);
  CPU_ZERO(&own.cores);
  sched_getaffinity(0, sizeof(own.cores), &own.cores);
  Entrance& entrance = board_.entrance(rank_);
  entrance.joined.store(1, std::memory_order_release);
  Ring(entrance.door);
  const Call call = Call::Barrier(CallContext{});
  bool needs_fence = false;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int rank = 0; rank < board_.size(); ++rank) {
    SYNCLINE_RETURN_IF_ERROR(Await(board_.entrance(rank).door, rank, {call, deadline},
                                   [&] { return board_.has_joined(rank); }));
    const RankArea& area = board_.area(rank);
    if (area.needs_fence.load() != 0) needs_fence = true;
    CPU_OR(&cores, &cores, &area.cores);
  }
  needs_fence_ = needs_fence;
  if (board_.size() <= CPU_COUNT(&cores)) spins_ = kSpins;
  return absl::OkStatus();
}

void Vigil::Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

absl::Status Vigil::AwaitLong(Doorbell& doorbell, int rank, const Waiting& waiting,
                              absl::FunctionRef<bool()> ready) {
  const auto end = std::chrono::steady_clock::now() + kYielding;
  while (std::chrono::steady_clock::now() < end && !is_condemned()) {
    if (ready()) return absl::OkStatus();
    sched_yield();
  }
  StallTimer stall;
  StallNotice notice;
  while (true) {
    const absl::Status interruption = CheckInterrupt();
    const absl::Status obstacle = interruption.ok() ? Obstacle(rank, waiting) : Interrupted();
    // It may have become ready before what stands in the way now.
    if (ready()) return absl::OkStatus();
    if (!obstacle.ok()) {
      Condemn(Annotate(obstacle, waiting.call.ToString())).IgnoreError();
      return interruption.ok() ? Heard(waiting.call) : interruption;
    }
    if (StallWatch::IsOpen()) {
      StallWatch::Look();
    } else if (stall.IsDue()) {
      WarnOfStall(rank, waiting, stall.waited(), notice.id());
    }
    Sleep(doorbell, ready);
  }
}

bool Vigil::LowerRankWaits(const Waiting& waiting) const {
  for (int other = 0; waiting.number > 0 && other < rank_; ++other) {
    const bool has_come = board_.header(other, waiting.number).number.load() >= waiting.number;
    if (has_come && board_.area(other).finished.load() < waiting.number) return true;
  }
  return false;
}

void Vigil::WarnOfStall(int rank, const Waiting& waiting, absl::Duration waited,
                        int64_t notice) const {
  Stall stall;
  stall.rank = rank_;
  stall.operation = waiting.call.ToString();
  stall.missing = Late(rank, waiting);
  stall.waited = waited;
  std::map<std::string, std::vector<int>> missing;
  for (int other : stall.missing) missing[Doing(other)].push_back(other);
  stall.text = StallText(roster_, stall.operation, waited, missing);
  ReportStall(notice, stall, !LowerRankWaits(waiting));
}

absl::Status Vigil::Heard(const Call& call) const {
  const absl::Status status = verdict();
  const int judge = static_cast<int>(board_.verdict().rank);
  if (judge == rank_ || KindOf(status) != ErrorKind::kTimeout) return status;
  return Annotate(status,
                  absl::StrCat(call.ToString(), ": ", roster_.Describe(judge), " reported"));
}

void Vigil::Sleep(Doorbell& doorbell, absl::FunctionRef<bool()> ready) const {
  doorbell.sleepers.fetch_add(1);
  const uint32_t rings = doorbell.rings.load();
  if (has_membarrier_) Membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
  if (!ready() && !is_condemned()) {
    const timespec nap = absl::ToTimespec(kNap);
    syscall(SYS_futex, &doorbell.rings, FUTEX_WAIT, rings, &nap, nullptr, 0);
  }
  doorbell.sleepers.fetch_sub(1);
}

void Vigil::Wake(Doorbell& doorbell) {
  doorbell.rings.fetch_add(1);
  syscall(SYS_futex, &doorbell.rings, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

absl::Status Vigil::Condemn(const absl::Status& cause) {
  Verdict& verdict = board_.verdict();
  uint32_t state = Verdict::kNone;
  if (verdict.state.compare_exchange_strong(state, Verdict::kBeingWritten)) {
    const absl::string_view text = cause.message().substr(0, sizeof(verdict.text));
    std::memcpy(verdict.text, text.data(), text.size());
    verdict.size = static_cast<uint32_t>(text.size());
    verdict.kind = static_cast<uint32_t>(KindOf(cause));
    verdict.rank = static_cast<uint32_t>(rank_);
    verdict.state.store(Verdict::kWritten, std::memory_order_release);
    // Before all that this rank's user writes once the call has returned. See CheckIntact.
    Fence(std::memory_order_release);
    for (int rank = 0; rank < board_.size(); ++rank) {
      Wake(board_.entrance(rank).door);
      if (!board_.has_joined(rank)) continue;
      Wake(board_.area(rank).done);
      Wake(board_.area(rank).post);
    }
  }
  const absl::Status first = this->verdict();
  return first.ok() ? cause : first;
}

absl::Status Vigil::verdict() const {
  const Verdict& verdict = board_.verdict();
  if (verdict.state.load(std::memory_order_relaxed) == Verdict::kNone) return absl::OkStatus();
  const Deadline deadline(kWriting);
  while (verdict.state.load(std::memory_order_acquire) != Verdict::kWritten) {
    if (deadline.Expired()) {
      return BackendError("a rank died while it wrote why the group has failed");
    }
    sched_yield();
  }
  return ErrorOfKind(static_cast<ErrorKind>(verdict.kind),
                     absl::string_view(verdict.text, verdict.size));
}

void Vigil::Leave(absl::string_view reason) {
  if (!board_.has_joined(rank_)) return;
  RankArea& own = board_.area(rank_);
  std::strncpy(own.reason, std::string(reason).c_str(), sizeof(own.reason) - 1);
  own.left.store(1, std::memory_order_release);
  Wake(own.done);
  Wake(own.post);
}

absl::Status Vigil::Departed(absl::string_view reason) const {
  return BackendError(absl::StrCat(roster_.Describe(rank_), " has left the group: ", reason));
}

absl::Status Vigil::Obstacle(int rank, const Waiting& waiting) const {
  SYNCLINE_RETURN_IF_ERROR(verdict());  // Stays the first.
  SYNCLINE_RETURN_IF_ERROR(Departure(rank));
  SYNCLINE_RETURN_IF_ERROR(Death());
  return waiting.deadline.Expired() ? Lateness(rank, waiting) : absl::OkStatus();
}

absl::Status Vigil::Interrupted() const {
  return BackendError(absl::StrCat(roster_.Describe(rank_), " was ", Interruption().message()));
}

absl::Status Vigil::Departure(int rank) const {
  std::vector<std::string> reasons;
  for (int other = 0; other < board_.size(); ++other) {
    if (other == rank_ || (rank != kAnySource && rank != other)) continue;
    if (!board_.has_joined(other)) return absl::OkStatus();
    const RankArea& area = board_.area(other);
    if (area.left.load(std::memory_order_acquire) == 0) return absl::OkStatus();
    reasons.push_back(absl::StrCat(roster_.Describe(other), " has left the group: ", area.reason));
  }
  return BackendError(absl::StrCat(rank == kAnySource ? "nobody is left to send: " : "",
                                   absl::StrJoin(reasons, "; ")));
}

absl::Status Vigil::Death() const {
  return watchdog_.Check([&](int rank) {  // A rank that has left was free to end.
    return !board_.has_joined(rank) || board_.area(rank).left.load(std::memory_order_acquire) == 0;
  });
}

absl::Status Vigil::Lateness(int rank, const Waiting& waiting) const {
  const std::string after = absl::FormatDuration(waiting.deadline.timeout());
  std::vector<std::string> late;
  if (rank == kAnySource) late.push_back(absl::StrCat("not complete after ", after));
  for (int other : Late(rank, waiting)) {
    late.push_back(absl::StrCat(roster_.Describe(other), " has not arrived after ", after, "; ",
                                Doing(other)));
  }
  return TimeoutError(absl::StrJoin(late, "; "));
}

std::vector<int> Vigil::Late(int rank, const Waiting& waiting) const {
  std::vector<int> late;
  for (int other = 0; other < board_.size(); ++other) {
    const bool has_come = waiting.number > 0
                              ? board_.header(other, waiting.number).number.load() >= waiting.number
                              : rank != kAnySource && rank != other;
    if (other != rank_ && !has_come) late.push_back(other);
  }
  if (!late.empty()) return late;
  // All have come. Who is waited for may itself wait for one that was stopped on the way.
  for (int other = 0; other < board_.size(); ++other) {
    if (other != rank_ && roster_.LivenessOf(other) == Liveness::kStopped) late.push_back(other);
  }
  if (late.empty()) late.push_back(rank);
  return late;
}

std::string Vigil::Doing(int rank) const {
  if (roster_.LivenessOf(rank) == Liveness::kStopped) return "its process is stopped";
  if (!board_.has_joined(rank)) return "it is joining the group";
  const RankArea& area = board_.area(rank);
  const Header* header = &area.headers[0];
  if (header->number.load() < area.headers[1].number.load()) header = &area.headers[1];
  if (header->number.load(std::memory_order_acquire) > area.finished.load()) {
    return absl::StrCat("it is in ", NameOfWords(header->content));
  }
  if (area.messages_under_way.load() > 0) return absl::StrCat("it is in ", NameOf(area.message));
  const std::string last = NameOf(area.last);
  return absl::StrCat(
      "it is in no operation of this group",
      last.empty() ? " and has been in none" : absl::StrCat(", its last was ", last));
}

}  // namespace syncline
