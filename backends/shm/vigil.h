// How a rank waits for others, and what ends a wait.
#ifndef SYNCLINE_BACKENDS_SHM_VIGIL_H_
#define SYNCLINE_BACKENDS_SHM_VIGIL_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "backends/common/call.h"
#include "backends/common/peer_table.h"
#include "backends/shm/board.h"
#include "backends/shm/peer_watchdog.h"
#include "core/base/deadline.h"

namespace syncline {

// A call that waits. Borrowed.
struct Waiting {
  const Call& call;
  const Deadline& deadline;
  uint64_t number = 0;  // Of the collective in its group, from 1; 0 for send and recv.
};

// One rank's eyes on its peers. Every wait spins for a moment, where each rank can have a core of
// its own, and then sleeps; it ends with its condition, at its deadline, when the group has failed,
// or when a rank has left or died. Thread-safe.
//
// Who changes something that others wait for calls Ring afterwards. That is free as long as nobody
// sleeps: the sleeper, not the ringer, pays for the memory barrier that keeps either from missing
// the other (membarrier(2); where the kernel has none, ringers fence).
class Vigil {
 public:
  // The board is in `memory`.
  Vigil(char* memory, PeerTable roster, PeerWatchdog watchdog);

  Vigil(const Vigil&) = delete;
  Vigil& operator=(const Vigil&) = delete;

  int rank() const { return rank_; }
  const Board& board() const { return board_; }
  const PeerTable& roster() const { return roster_; }
  // Not while another thread waits here.
  PeerWatchdog& watchdog() { return watchdog_; }

  // Waits until `ready()`, which rank `rank` or kAnySource makes true and then rings `doorbell`.
  template <typename Ready>
  absl::Status Await(Doorbell& doorbell, int rank, const Waiting& waiting, const Ready& ready) {
    for (int i = 0; i < spins_; ++i) {
      if (ready()) return absl::OkStatus();
      Relax();
    }
    return AwaitLong(doorbell, rank, waiting, ready);
  }

  // After a change that others may be waiting for at `doorbell`.
  void Ring(Doorbell& doorbell) const {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    const uint32_t sleepers = needs_fence_ ? doorbell.sleepers.fetch_add(0)  // Orders as well.
                                           : doorbell.sleepers.load(std::memory_order_relaxed);
    if (sleepers != 0) Wake(doorbell);
  }

  // Fails the group on all ranks with `cause`, unless it has failed: returns the first cause.
  absl::Status Condemn(const absl::Status& cause);

  // The first cause, or OK.
  absl::Status verdict() const;
  bool is_condemned() const {
    return board_.verdict().state.load(std::memory_order_relaxed) != Verdict::kNone;
  }

  // OK unless the group has failed: then a call that has read memory of others fails with the
  // cause. Call it after the last read of memory that its owner uses for something else once its
  // own call has failed, such as a user's tensor. A rank fails the group before its call returns,
  // so what it writes afterwards is seen here only together with the failure: this fence pairs with
  // the one in Condemn. It costs no instruction on x86.
  absl::Status CheckIntact(const Call& call) const {
    Fence(std::memory_order_acquire);
    return ABSL_PREDICT_TRUE(!is_condemned()) ? absl::OkStatus() : Heard(call);
  }

  // Returns once all ranks are here. First of all, but for Condemn; once this rank has memory.
  absl::Status Join(const Deadline& deadline);

  // Tells all that this rank takes part in nothing any more; and the error for those who need it.
  void Leave(absl::string_view reason);
  absl::Status Departed(absl::string_view reason) const;

 private:
  static void Relax();
  // ThreadSanitizer knows no fences, and runs only where these two need none.
  static void Fence(std::memory_order order) {
#if defined(__SANITIZE_THREAD__)
    std::atomic_signal_fence(order);
#else
    std::atomic_thread_fence(order);
#endif
  }

  absl::Status AwaitLong(Doorbell& doorbell, int rank, const Waiting& waiting,
                         absl::FunctionRef<bool()> ready);
  // The verdict, for a call that it ends: says who reached it, if that is another rank's timeout.
  absl::Status Heard(const Call& call) const;
  static void Wake(Doorbell& doorbell);
  void Sleep(Doorbell& doorbell, absl::FunctionRef<bool()> ready) const;

  // Why the wait for `rank` is in vain, if it is. Does not look at `ready`.
  absl::Status Obstacle(int rank, const Waiting& waiting) const;
  // Reports who is missing, in the log too if no lower rank does.
  void WarnOfStall(int rank, const Waiting& waiting, absl::Duration waited, int64_t notice) const;
  // Whether a lower rank waits in the same collective.
  bool LowerRankWaits(const Waiting& waiting) const;
  absl::Status Interrupted() const;  // What the others get when this rank was interrupted.
  absl::Status Departure(int rank) const;
  absl::Status Death() const;
  absl::Status Lateness(int rank, const Waiting& waiting) const;
  std::vector<int> Late(int rank, const Waiting& waiting) const;
  std::string Doing(int rank) const;

  const PeerTable roster_;
  PeerWatchdog watchdog_;
  const Board board_;
  const int rank_;
  int spins_ = 1;  // More if there are as many cores as ranks.
  bool has_membarrier_;
  bool needs_fence_ = true;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_VIGIL_H_
