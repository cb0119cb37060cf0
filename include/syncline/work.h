// An operation in flight.
#ifndef SYNCLINE_WORK_H_
#define SYNCLINE_WORK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "syncline/completion.h"
#include "syncline/device.h"
#include "syncline/fork.h"

namespace syncline {

// Shared between whoever started the operation and the thread that runs it. Thread-safe. To a child
// that was forked since the operation started, it has failed with a BackendError.
//
//   SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Work> work, group->AllReduceAsync(gradients));
//   work->OnComplete([](const absl::Status& outcome) { ... });  // And, or:
//   SYNCLINE_RETURN_IF_ERROR(work->Wait());
class Work {
 public:
  enum class State { kPending, kRunning, kDone, kTimedOut, kFailed };

  explicit Work(std::string description) : description_(std::move(description)) {}

  // Waits until the operation has finished and returns its outcome. If it has not finished within
  // `timeout` returns a TimeoutError, and an InterruptedError if this thread is interrupted; the
  // operation itself goes on until its own deadline.
  //
  // Of an operation on tensors of a device, Wait without a timeout makes this thread's current
  // stream wait for it, see CurrentStream, and returns once that is enqueued: OK then does not say
  // that the operation has succeeded. With a timeout, and by Synchronize, the host waits.
  absl::Status Wait(std::optional<absl::Duration> timeout = std::nullopt);
  absl::Status Synchronize(absl::Duration timeout = absl::InfiniteDuration());

  // Whether the operation has finished. Asks the device where the operation is on its tensors.
  bool IsCompleted() const;
  State state() const;

  // The outcome; OK while the operation is in flight.
  absl::Status status() const;

  // Of a receive that has succeeded: the rank that sent. Else -1.
  int source_rank() const;

  // Calls `callback` with the outcome: at once if it is known, else on the thread that finishes
  // the operation, which may finish others too. No lock is held during the call, which must not
  // block.
  void OnComplete(std::function<void(const absl::Status&)> callback);

  // "all_reduce #1580 (float32[4096] on cpu, sum)".
  const std::string& description() const { return description_; }

  // For the thread that runs the operation. Finish must be called exactly once; `source` is the
  // rank that sent, of a receive. It calls `settled` when the outcome is known to all, before the
  // callbacks, which may wait for what it does.
  void Start();
  // The operation is under way on streams of `device`, and `handle` tells when it ends.
  void Enqueued(const Device& device, std::shared_ptr<Completion::Handle> handle);
  void Finish(absl::Status status, int source = -1, absl::FunctionRef<void()> settled = [] {});

 private:
  absl::Status LostToChild() const;
  // The handle of an operation on streams; null for others, and until it is under way.
  std::shared_ptr<Completion::Handle> handle() const;

  const std::string description_;
  const ForkGuard fork_guard_;
  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kPending;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  int source_ ABSL_GUARDED_BY(mutex_) = -1;
  std::vector<std::function<void(const absl::Status&)>> callbacks_ ABSL_GUARDED_BY(mutex_);
  Device device_ ABSL_GUARDED_BY(mutex_);  // Of handle_.
  std::shared_ptr<Completion::Handle> handle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline

#endif  // SYNCLINE_WORK_H_
