// Ends the calls of one rank: when their work has ended, or together when something keeps it from
// ending.
#ifndef SYNCLINE_BACKENDS_NCCL_WATCHDOG_H_
#define SYNCLINE_BACKENDS_NCCL_WATCHDOG_H_

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "backends/nccl/communicator.h"
#include "backends/nccl/nccl_group.h"
#include "core/device/stream_handle.h"

namespace syncline::nccl {

// A call that has been enqueued, or a barrier: done once its work is, and all ranks have been found
// to have made the same call.
class PendingCall final : public device::StreamHandle {
 public:
  // `end` is null for a barrier, which is no work of a device. `others` are
  // devices that have tensors of the call, besides that of the caller's stream. `kept` is what the
  // work uses beside the tensors: it is let go of as what callbacks hold is.
  PendingCall(const std::shared_ptr<const device::Event>& end, int source, PublishedCall call,
              std::shared_ptr<NcclGroup> group, std::vector<Communicator*> used,
              std::vector<Device> others, std::vector<std::shared_ptr<void>> kept,
              std::shared_ptr<const std::atomic<bool>> is_aborting);

  const PublishedCall& call() const { return call_; }
  const std::vector<Communicator*>& used() const { return used_; }

  // Whether what was enqueued has ended, in whatever way.
  bool HasWorkEnded() const;

  // At the call's own deadline the watchdog ends it, with an error that says who is missing.
  absl::StatusOr<int> Wait(const Deadline& deadline) override;
  bool is_stream_ordered() const override { return is_stream_ordered_; }
  absl::Status EnqueueWait(const Stream& stream) override;

 protected:
  std::optional<absl::Status> Verdict() override;
  // Tells the group.
  void Ended(const absl::StatusOr<int>& outcome) override;

 private:
  PendingCall(bool is_stream_ordered, const std::shared_ptr<const device::Event>& end, int source,
              PublishedCall call, std::shared_ptr<NcclGroup> group, std::vector<Communicator*> used,
              std::vector<Device> others, std::vector<std::shared_ptr<void>> kept,
              std::shared_ptr<const std::atomic<bool>> is_aborting);

  const std::shared_ptr<const device::Event> end_;
  const bool is_stream_ordered_;
  const PublishedCall call_;
  const std::shared_ptr<NcclGroup> group_;
  const std::vector<Communicator*> used_;
  const std::shared_ptr<const std::atomic<bool>> is_aborting_;
};

// A thread for each group. While calls are pending it looks at them, at NCCL's errors, at the
// deadlines, at the peers and at what these have written; else it sleeps. When the group is over it
// aborts the communicators, or finalizes them if this rank has left, and ends what is pending.
//
// The thread only sets outcomes. It runs no callback and lets go of no tensor, which may wait for a
// device or for the interpreter, and thus for a call that this thread alone can abort: see
// TaskThread. Thread-safe.
class Watchdog : public std::enable_shared_from_this<Watchdog> {
 public:
  Watchdog(std::shared_ptr<NcclGroup> group, std::shared_ptr<Communicators> communicators)
      : group_(std::move(group)), communicators_(std::move(communicators)) {}

  // BackendError if no thread can be started.
  absl::Status Start();

  // Ends the call from now on.
  void Add(const std::shared_ptr<PendingCall>& call);

  // Set once communicators are being ended, after which the end of work means nothing.
  std::shared_ptr<const std::atomic<bool>> is_aborting() const { return is_aborting_; }

  bool HasCalls();
  // Waits until there are none.
  void AwaitCalls(absl::Duration limit);

  // Of a group that is over: waits until the communicators have ended.
  void AwaitEnd(const Deadline& deadline);

  // Of a group that is over: ends the thread, once it has aborted the communicators. Gives up what
  // takes NCCL or a store longer than kStopTime: a thread then stays behind, and keeps all that it
  // uses.
  void Stop();

  static constexpr absl::Duration kStopTime = absl::Seconds(5);

 private:
  void Loop();
  // Looks at each pending call.
  void LookAtCalls();
  void LookForAsyncErrors(const PendingCall& call);
  void EndAll();
  void AbortCommunicators();
  void StopServers();

  const std::shared_ptr<NcclGroup> group_;
  const std::shared_ptr<Communicators> communicators_;
  const std::shared_ptr<std::atomic<bool>> is_aborting_ =
      std::make_shared<std::atomic<bool>>(false);
  std::thread thread_;
  std::thread aborter_;                                             // Of the thread.
  Deadline blame_ = Deadline::FromFirstWait(absl::ZeroDuration());  // Likewise.
  bool has_error_ = false;                                          // Likewise.

  absl::Mutex mutex_;
  std::vector<std::shared_ptr<PendingCall>> calls_ ABSL_GUARDED_BY(mutex_);
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_aborted_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncline::nccl

#endif  // SYNCLINE_BACKENDS_NCCL_WATCHDOG_H_
