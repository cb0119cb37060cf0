// Keeps the first failure of a group, for all its ranks.
#ifndef SYNCLINE_BACKENDS_SHM_FAILURE_CELL_H_
#define SYNCLINE_BACKENDS_SHM_FAILURE_CELL_H_

#include <atomic>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "backends/common/peer_table.h"
#include "backends/shm/segment_layout.h"
#include "syncline/backend.h"

namespace syncline::shm {

// A cell in the segment that is written at most once: by the first rank that fails the group. From
// then on every call on every rank fails with that cause. Thread-safe. Borrows the layout and the
// peers.
class FailureCell {
 public:
  FailureCell(const SegmentLayout& layout, const backends::PeerTable& peers)
      : record_(layout.failure_record()), layout_(layout), peers_(peers) {}

  // Fails the group on all ranks with `cause`, unless it has failed, and wakes all that wait.
  // Returns the first cause, which may be that of another rank.
  absl::Status Fail(const absl::Status& cause);

  // The first cause, or OK. If the rank that reports it dies while it writes, a BackendError that
  // says so, after kWriteTimeout.
  absl::Status failure() const;

  // Relaxed: it may be false for a moment after another rank's Fail. See CheckIntact.
  bool has_failed() const {
    return record_.state.load(std::memory_order_relaxed) != FailureRecord::kNone;
  }

  // The first cause, for a call that it ends. Adds which rank reported it if it is the timeout of
  // another rank's call. Requires has_failed.
  absl::Status ObserveFailure(const CallContext& context) const;

  // OK unless the group has failed; then the cause. Call it after the last read of memory that its
  // owner may use for something else once its own call has failed, such as a user's tensor: data
  // are a result only if this returns OK. A rank fails the group before its call returns, so
  // whoever reads what it writes afterwards sees the failure here. The acquire fence pairs with the
  // release fence in Fail; it costs no instruction on x86.
  absl::Status CheckIntact(const CallContext& context) const {
    Fence(std::memory_order_acquire);
    return ABSL_PREDICT_TRUE(!has_failed()) ? absl::OkStatus() : ObserveFailure(context);
  }

 private:
  // ThreadSanitizer does not model fences, and runs only where these two need no instruction.
  static void Fence(std::memory_order order) {
#if defined(__SANITIZE_THREAD__)
    std::atomic_signal_fence(order);
#else
    std::atomic_thread_fence(order);
#endif
  }

  FailureRecord& record_;
  const SegmentLayout& layout_;
  const backends::PeerTable& peers_;
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_FAILURE_CELL_H_
