// Waits on conditions in shared memory, and wakes threads that do.
#ifndef SYNCLINE_BACKENDS_SHM_WAITER_H_
#define SYNCLINE_BACKENDS_SHM_WAITER_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "backends/common/lifecycle.h"
#include "backends/common/peer_table.h"
#include "backends/shm/failure_cell.h"
#include "backends/shm/peer_watchdog.h"
#include "backends/shm/segment_layout.h"
#include "backends/shm/thresholds.h"
#include "backends/shm/wait_context.h"
#include "core/base/event_count.h"

namespace syncline::shm {

// A wait spins for some microseconds where every rank can have a core of its own, and for less than
// one, if that has helped, where not; then yields its core for a moment; then sleeps on a futex. It
// ends when the condition holds, the deadline passes, the group fails, a peer leaves or dies, or
// the thread is interrupted.
//
// Thread-safe once Configure has returned. Borrows all that it is made of.
//
//   // A thread that waits:
//   SYNCLINE_RETURN_IF_ERROR(waiter.Await(region.collective_event, rank, context, [&] {
//     return region.chunks_written.load(std::memory_order_acquire) >= n;
//   }));
//   // The owner of `region`, in whatever process:
//   region.chunks_written.store(n, std::memory_order_release);
//   waiter.Notify(region.collective_event);
class Waiter {
 public:
  Waiter(const SegmentLayout& layout, const backends::PeerTable& peers, FailureCell& failure,
         const PeerWatchdog& watchdog);

  // Says what has been learned of all ranks: whether each can have a core of its own, and whether
  // one lacks membarrier(2). Before that, waits do not spin, and notifications fence.
  void Configure(bool has_core_for_each_rank, bool needs_fence);
  bool has_membarrier() const { return has_membarrier_; }
  // Whether ranks share cores. The same on all ranks.
  bool is_oversubscribed() const { return spins_ == 1; }

  // Waits until `ready()`, which rank `rank`, or any for kAnySource, makes true before it notifies
  // `event`. `ready` must load what it looks at with acquire if it wants to read what was written
  // before; it runs often and on this thread only. An error of the group or of this wait fails the
  // group on all ranks, and is the first cause of its failure: see PeerWatchdog::CheckPeers. An
  // interrupt is returned as such here, and as a BackendError that names this rank elsewhere.
  template <typename Ready>
  absl::Status Await(base::EventCount& event, int rank, const WaitContext& context,
                     const Ready& ready) {
    return SpinAndAwait(spins_, event, rank, context, ready);
  }

  // The same for the entry of one rank into a collective: where ranks share cores, it spins for a
  // moment, unless that was in vain with this rank. See kSharedCoresSpins. For the thread of
  // collectives.
  template <typename Ready>
  absl::Status AwaitEntry(base::EventCount& event, int rank, const WaitContext& context,
                          const Ready& ready) {
    if (!is_oversubscribed()) return SpinAndAwait(spins_, event, rank, context, ready);
    if (ready()) return absl::OkStatus();
    int& score = spin_scores_[rank];
    const bool spins = score >= 0;
    for (int i = 0; spins && i < kSharedCoresSpins; ++i) {
      Relax();
      if (!ready()) continue;
      score = std::min(score + kSpinGain, kMaxSpinScore);
      return absl::OkStatus();
    }
    // Below 0 it counts the waits up to the next trial.
    score = !spins ? score + 1 : score == 0 ? -kSpinTrialInterval : score - 1;
    return AwaitSlowly(event, rank, context, ready);
  }

  // The same for a message, of one rank: where ranks share cores, it spins for as long as that rank
  // takes to answer if it runs on another core, unless the last waits for messages, of whatever
  // rank, were in vain.
  template <typename Ready>
  absl::Status AwaitMessage(base::EventCount& event, int rank, const WaitContext& context,
                            const Ready& ready) {
    if (!is_oversubscribed()) return SpinAndAwait(spins_, event, rank, context, ready);
    // Relaxed: it is a guess, which threads may overwrite for each other.
    const int until_trial = until_message_spin_.load(std::memory_order_relaxed);
    for (int i = 0; i < (until_trial > 0 ? kFewMessageSpins : kMessageSpins); ++i) {
      if (ready()) {
        if (i > 0) until_message_spin_.store(0, std::memory_order_relaxed);
        return absl::OkStatus();
      }
      Relax();
    }
    until_message_spin_.store(until_trial > 0 ? until_trial - 1 : kMessageSpinTrialInterval,
                              std::memory_order_relaxed);
    return AwaitSlowly(event, rank, context, ready);
  }

  // Lets another rank get on a little, if this one has a core of its own: for as long as a few
  // small collectives take.
  void Pause() const {
    for (int i = 0; i < kPauseSpins && !is_oversubscribed(); ++i) Relax();
  }

  // Call it after changing state that others wait for at `event`. It costs no fence while nobody
  // sleeps. Either the waiter's last look at its condition must see the change, or this load must
  // see `sleepers`, which needs a full barrier between the store and the load on both sides. The
  // waiter issues both, with membarrier(2), before its last look: see Sleep. Where a rank's kernel
  // has none, each side fences for itself. Returns whether somebody may have been asleep.
  bool Notify(base::EventCount& event) const {
    if (!HasSleepers(event)) return false;
    base::WakeAll(event);
    return true;
  }

  // For a rank that is so far ahead of the owner of `region` that it is about to wait until that is
  // `ready`. Where they share cores, and such waits have lasted for long, sleeps until the owner
  // has finished collective `number`, or for a moment. To look again and again, as a wait does
  // first, would take half a core from those it waits for, even if it yields: the scheduler sees to
  // it that each gets its share. But to sleep and be woken takes as long as many short collectives.
  // Returns false if it has slept in vain. For the thread of collectives.
  bool Rest(RankRegion& region, uint64_t number, absl::FunctionRef<bool()> ready);
  // For the owner: it has finished collective `number`.
  void NotifyResting(RankRegion& region, uint64_t number) const {
    base::EventCount& event = region.rest_event;
    if (ABSL_PREDICT_TRUE(!HasSleepers(event))) return;
    if (number < region.rested_at.load(std::memory_order_acquire)) return;
    // Before the epoch changes: who lowers it at the same time then does not sleep.
    region.rested_at.store(std::numeric_limits<uint64_t>::max());
    base::WakeAll(event);
  }

  // For a rank that waits for data of the owner of `region`, which was far ahead of it after the
  // last wait, while they share cores: sleeps until that one waits in this group itself, or for
  // kDoze. To look again and again would take half a core from it, as above; to be woken for each
  // call would take it as long as a call.
  void Doze(RankRegion& region, absl::FunctionRef<bool()> ready) const;
  // For the owner: it is about to wait.
  void WakeDozing(RankRegion& region) const {
    if (ABSL_PREDICT_FALSE(HasSleepers(region.lead_event))) base::WakeAll(region.lead_event);
  }

  // For the thread that waits in a collective: see NodeBackend.
  backends::Lifecycle::Awaited WhoIsAwaited() const;

  // For a thread that looks at a condition of its own while it sleeps elsewhere than here: from
  // BeginSleep to EndSleep it counts as a sleeper at `event`. What was stored before a Notify that
  // does not see it is there for loads after BeginSleep.
  void BeginSleep(base::EventCount& event) const {
    event.sleepers.fetch_add(1);
    FenceAll();
  }
  void EndSleep(base::EventCount& event) const { event.sleepers.fetch_sub(1); }

 private:
  // Whether somebody may be asleep, or about to, who does not see what this rank has stored before.
  bool HasSleepers(base::EventCount& event) const {
    // Keeps the compiler from moving the caller's store below the load; the processor is stopped
    // from it by the waiter's membarrier.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    // The addition of nothing is a sequentially consistent load that orders earlier stores too.
    return (needs_fence_ ? event.sleepers.fetch_add(0)
                         : event.sleepers.load(std::memory_order_acquire)) != 0;
  }

  static void Relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  template <typename Ready>
  absl::Status SpinAndAwait(int spins, base::EventCount& event, int rank,
                            const WaitContext& context, const Ready& ready) {
    for (int i = 0; i < spins; ++i) {
      if (ready()) return absl::OkStatus();
      Relax();
    }
    return AwaitSlowly(event, rank, context, ready);
  }
  // Keeps long_wait_score_, of a wait that has begun then.
  void LearnFrom(std::chrono::steady_clock::time_point begin);
  // Returns false at the end, or once the group has failed.
  bool YieldUntil(std::chrono::steady_clock::time_point end, absl::FunctionRef<bool()> ready) const;
  absl::Status AwaitSlowly(base::EventCount& event, int rank, const WaitContext& context,
                           absl::FunctionRef<bool()> ready);
  // Runs a full barrier on the cores of all ranks, where the kernel can.
  void FenceAll() const;
  // Sleeps until a notification, or for kPeerCheckInterval, unless `ready`.
  void Sleep(base::EventCount& event, absl::FunctionRef<bool()> ready) const;
  // What the others get when this rank was interrupted.
  absl::Status InterruptedRankError() const;

  // The wait of a collective, of which a rank has one at most; that of one that has failed stays.
  struct CollectiveWait {
    int rank;
    const WaitContext* context;            // Null once it has failed.
    backends::Lifecycle::Awaited awaited;  // Then.
  };

  int spins_ = 1;
  std::atomic<int> until_message_spin_{0};  // Waits.
  std::vector<int> spin_scores_;            // Of each rank. See AwaitEntry.
  // Of waits for a root that yielded for kLongWait: how many times kVeryLongWait they went on for,
  // less the number of those that did not, since it was last 0.
  std::atomic<int> long_wait_score_{0};
  bool needs_fence_ = true;
  bool has_membarrier_;
  const SegmentLayout& layout_;
  const backends::PeerTable& peers_;
  FailureCell& failure_;
  const PeerWatchdog& watchdog_;
  std::optional<CollectiveWait> collective_wait_;
  int long_waits_ = 0;  // Of Rest, in a row.
  int rests_ = 0;       // Since it has last looked how long a wait lasts.
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_WAITER_H_
