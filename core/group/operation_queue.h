// A queue of operations that take effect one after another, in the order of issue.
#ifndef SYNCLINE_CORE_GROUP_OPERATION_QUEUE_H_
#define SYNCLINE_CORE_GROUP_OPERATION_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "syncline/deadline.h"

namespace syncline::group {

// Operations of a group run here. An operation that someone waits for anyway runs on the waiting
// thread if the queue is idle: no hand-off, since latency is the product. All others run on a
// thread that is started when it is needed and ends when it has been idle for a while. Thread-safe.
class OperationQueue {
 public:
  // Where sequence numbers come from if several queues share them: each gets increasing ones, with
  // gaps.
  using SequenceCounter = std::atomic<uint64_t>;

  // Without a counter the queue counts for itself, from 0.
  explicit OperationQueue(std::shared_ptr<SequenceCounter> counter = nullptr);
  // Runs what is still queued; the owner has seen to it that this is quick. May be called by an
  // operation of the queue itself.
  ~OperationQueue();

  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  // Runs `operation` after all earlier ones, with its sequence number, and returns its outcome.
  // A TimeoutError if it has not begun by `deadline`, and an InterruptedError if this thread is
  // interrupted before; it is then never run. Once begun, it is waited for: it keeps the deadline
  // itself. If it runs on the queue's thread when this one is interrupted, `end` is called, which
  // makes it return soon. BackendError if no thread can be started.
  absl::Status Run(
      const Deadline& deadline, absl::FunctionRef<absl::Status(uint64_t sequence)> operation,
      absl::FunctionRef<void(const absl::Status& interruption)> end = [](const absl::Status&) {});

  // Queues what `issue` returns, given its sequence number, behind all earlier operations; returns
  // at once. `issue` is called during the call, under the queue's lock. BackendError, and nothing
  // is queued, if no thread can be started.
  absl::Status Post(absl::FunctionRef<std::function<void()>(uint64_t sequence)> issue);

  // Whether nothing is running or queued.
  bool IsIdle() const;
  // Waits for that until `deadline`; not at all if an operation of the queue's thread calls it.
  void AwaitIdle(const Deadline& deadline) const;

 private:
  struct State;  // Shared with the thread, which may outlive the queue that it ends.

  const std::shared_ptr<State> state_;
};

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_OPERATION_QUEUE_H_
