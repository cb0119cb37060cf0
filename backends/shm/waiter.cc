#include "backends/shm/waiter.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "backends/shm/thresholds.h"
#include "core/base/stall.h"
#include "core/base/stall_file.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::shm {
namespace {

// How often a sleeping rank looks whether its peers live.
constexpr absl::Duration kPeerCheckInterval = absl::Milliseconds(10);

// Whether the root of a group of several nodes may have parts of its own to send or to take, to and
// from other nodes, while its neighbours wait for it.
bool IsStepOfRoot(const CallContext& call) {
  return call.step_of != nullptr &&
         (call.step_of->kind == OpKind::kGather || call.step_of->kind == OpKind::kScatter);
}

bool Membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

// GLOBAL_EXPEDITED reaches only processes that have registered. So every rank registers here, and
// says in its region whether it could.
Waiter::Waiter(const SegmentLayout& layout, const backends::PeerTable& peers, FailureCell& failure,
               const PeerWatchdog& watchdog)
    : spin_scores_(layout.size()),
      has_membarrier_(Membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)),
      layout_(layout),
      peers_(peers),
      failure_(failure),
      watchdog_(watchdog) {}

void Waiter::Configure(bool has_core_for_each_rank, bool needs_fence) {
  needs_fence_ = needs_fence;
  // Where ranks share cores, to spin for long would keep the awaited rank from running.
  if (has_core_for_each_rank) spins_ = kSpins;
}

absl::Status Waiter::AwaitSlowly(base::EventCount& event, int rank, const WaitContext& context,
                                 absl::FunctionRef<bool()> ready) {
  WakeDozing(layout_.region(peers_.rank()));
  const auto begin = std::chrono::steady_clock::now();
  if (YieldUntil(begin + kLongWait, ready)) return absl::OkStatus();
  const bool may_be_long = is_oversubscribed() && IsStepOfRoot(context.call);
  const absl::Cleanup learn = [&] {
    if (may_be_long) LearnFrom(begin);
  };
  const bool will_be_long =
      may_be_long && long_wait_score_.load(std::memory_order_relaxed) >= kLongWaits;
  if (!will_be_long && YieldUntil(begin + kYieldTime, ready)) return absl::OkStatus();
  base::StallTimer stall;
  base::StallNotice notice;
  const bool is_collective = context.number > 0;
  if (is_collective) collective_wait_ = {rank, &context, {}};
  RankRegion& own = layout_.region(peers_.rank());
  std::atomic<int32_t>& awaits = is_collective ? own.awaits : own.message_awaits;
  const absl::Cleanup end_wait = [&] {
    // Relaxed, as below: it is for messages of errors.
    awaits.store(0, std::memory_order_relaxed);
    if (is_collective && collective_wait_->context != nullptr) collective_wait_.reset();
  };
  while (true) {
    // Again each time: another thread, with a message too, may have taken it back.
    if (rank != kAnySource) awaits.store(rank + 1, std::memory_order_relaxed);
    const absl::Status interruption = CheckInterrupt();
    const absl::Status obstacle =
        interruption.ok() ? watchdog_.CheckPeers(rank, context) : InterruptedRankError();
    // A peer may have made it true, and then left or died, since the last look.
    if (ready()) return absl::OkStatus();
    if (!obstacle.ok()) {
      if (is_collective) {
        collective_wait_->awaited = WhoIsAwaited();
        collective_wait_->context = nullptr;
      }
      const backends::CallDescription call = context.Describe();
      failure_
          .Fail(WithOperation(Annotate(obstacle, call.ToString()),
                              call.OperationOf(peers_.NumberOf(peers_.rank()))))
          .IgnoreError();
      return interruption.ok() ? failure_.ObserveFailure(context.call) : interruption;
    }
    if (base::StallWatch::IsOpen()) {
      base::StallWatch::Look();
    } else if (stall.IsDue()) {
      watchdog_.ReportStall(rank, context, stall.waited(), notice.id());
    }
    Sleep(event, ready);
  }
}

backends::Lifecycle::Awaited Waiter::WhoIsAwaited() const {
  if (!collective_wait_.has_value()) return {};
  const auto& [rank, context, awaited] = *collective_wait_;
  return context == nullptr ? awaited : watchdog_.WhoIsAwaited(rank, *context);
}

void Waiter::LearnFrom(std::chrono::steady_clock::time_point begin) {
  const auto times = (std::chrono::steady_clock::now() - begin) / kVeryLongWait;
  const int change = times == 0 ? -1 : static_cast<int>(std::min<int64_t>(times, kLongWaits));
  // Relaxed: it is a guess, which threads may overwrite for each other.
  const int score = long_wait_score_.load(std::memory_order_relaxed) + change;
  long_wait_score_.store(std::clamp(score, 0, 2 * kLongWaits), std::memory_order_relaxed);
}

bool Waiter::YieldUntil(std::chrono::steady_clock::time_point end,
                        absl::FunctionRef<bool()> ready) const {
  while (std::chrono::steady_clock::now() < end && !failure_.has_failed()) {
    if (ready()) return true;
    sched_yield();
  }
  return false;
}

bool Waiter::Rest(RankRegion& region, uint64_t number, absl::FunctionRef<bool()> ready) {
  if (!is_oversubscribed()) return true;
  WakeDozing(layout_.region(peers_.rank()));
  if (long_waits_ < kLongWaits || ++rests_ >= kRestTrialInterval) {
    rests_ = 0;
    if (YieldUntil(std::chrono::steady_clock::now() + kLongRest, ready)) {
      long_waits_ = 0;
      return true;
    }
    if (++long_waits_ < kLongWaits) return true;
  }
  base::EventCount& event = region.rest_event;
  event.sleepers.fetch_add(1);
  const uint32_t epoch = event.epoch.load();
  uint64_t at = region.rested_at.load();
  while (number < at && !region.rested_at.compare_exchange_weak(at, number)) {
  }
  FenceAll();  // As in Sleep.
  if (region.collectives_finished.load(std::memory_order_acquire) < number &&
      !failure_.has_failed()) {
    base::SleepWhileEpochIs(event, epoch, kPeerCheckInterval);
  }
  event.sleepers.fetch_sub(1);
  return ready();
}

void Waiter::Doze(RankRegion& region, absl::FunctionRef<bool()> ready) const {
  base::EventCount& event = region.lead_event;
  event.sleepers.fetch_add(1);
  const uint32_t epoch = event.epoch.load();
  // No fence: a notification that is missed costs kDoze.
  if (!ready() && !failure_.has_failed()) base::SleepWhileEpochIs(event, epoch, kDoze);
  event.sleepers.fetch_sub(1);
}

void Waiter::Sleep(base::EventCount& event, absl::FunctionRef<bool()> ready) const {
  event.sleepers.fetch_add(1);
  // Read before the last look: a notification after it changes the epoch, and FUTEX_WAIT returns.
  const uint32_t epoch = event.epoch.load();
  // A Notify whose load of `sleepers` came before this barrier has its store before it too, so
  // `ready` sees that; a later one sees `sleepers`.
  FenceAll();
  if (!ready() && !failure_.has_failed()) {
    base::SleepWhileEpochIs(event, epoch, kPeerCheckInterval);
  }
  event.sleepers.fetch_sub(1);
}

void Waiter::FenceAll() const {
  if (has_membarrier_) Membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

absl::Status Waiter::InterruptedRankError() const {
  const int rank = peers_.rank();
  return WithRanks(
      BackendError(absl::StrCat(peers_.Describe(rank), " was ", Interruption().message())),
      {peers_.NumberOf(rank)});
}

}  // namespace syncline::shm
