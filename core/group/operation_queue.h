// A queue of operations that take effect one after another, in the order of issue.
#ifndef SYNCLINE_CORE_GROUP_OPERATION_QUEUE_H_
#define SYNCLINE_CORE_GROUP_OPERATION_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "core/base/thread_bias.h"
#include "syncline/deadline.h"

namespace syncline::group {

// The way past a queue's lock. An operation that finds the queue idle takes no lock, since for a
// small one that is much of its cost.
//
// As long as one thread makes all calls, and waits for each, the lane is biased towards it, and
// taking it is a store (core/base/thread_bias.h). The first call of another thread, and the first
// that is queued, end that for good. From then on an operation runs if it can set kTaken, and
// clears it when it ends. Whoever needs more, to queue an operation or to wait for one, does so
// under the queue's mutex, after setting kClaimed. Then operations take the mutex instead of the
// lane, and one that has the lane takes the mutex when it ends, which has the conditions of those
// who wait looked at; but one that took the lane while it was biased does not, so until that one
// ends whoever waits has to look again and again: IsHeldByBias. kClaimed is cleared when nothing
// runs, is queued or waits any more.
class OperationLane {
 public:
  using SequenceCounter = std::atomic<uint64_t>;

  // Sequence numbers come from `counter`, or from the lane itself if that is null.
  explicit OperationLane(SequenceCounter* counter) : counter_(counter) {}

  // Takes the lane, and a sequence number with it, if the queue is idle.
  ABSL_ATTRIBUTE_ALWAYS_INLINE bool TryTake(uint64_t& sequence) {
    if (ABSL_PREDICT_TRUE(bias_.TryHold())) {
      // Nobody else writes the word while the bias lasts, nor before is_numbered_ is set.
      const uint64_t seen = word_.load(std::memory_order_relaxed);
      word_.store(seen + kOneSequence, std::memory_order_relaxed);
      sequence = Number(seen);
      is_numbered_.store(true, std::memory_order_release);
      return true;
    }
    return TryTakeUnbiased(sequence);
  }
  // Frees the lane, unless somebody has claimed it. If it has, the queue may be destroyed.
  bool TryFree() {
    if (ABSL_PREDICT_TRUE(bias_.IsHeldByThisThread())) {
      is_numbered_.store(false, std::memory_order_relaxed);
      bias_.LetGo();
      return true;
    }
    uint64_t seen = word_.load(std::memory_order_relaxed);
    return (seen & kClaimed) == 0 &&
           word_.compare_exchange_strong(seen, seen & ~kTaken, std::memory_order_release,
                                         std::memory_order_relaxed);
  }

  // The rest is called under the queue's mutex.

  // Makes the lane biased towards this thread if nobody has used it yet, and takes it.
  bool TryAdopt(uint64_t& sequence) { return bias_.Adopt() && TryTake(sequence); }
  void Free() { word_.fetch_and(~kTaken, std::memory_order_release); }
  // After Claim.
  bool IsTaken() const {
    return (word_.load(std::memory_order_acquire) & kTaken) != 0 || IsHeldByBias();
  }
  bool IsHeldByBias() const { return bias_.IsHeld(); }
  void Claim() {
    if (ABSL_PREDICT_FALSE(!bias_.has_ended())) EndBias();
    word_.fetch_or(kClaimed, std::memory_order_relaxed);
  }
  void Unclaim() { word_.fetch_and(~kClaimed, std::memory_order_release); }
  // After Claim, so that it increases.
  uint64_t NextSequence() {
    return Number(word_.fetch_add(kOneSequence, std::memory_order_acquire));
  }

 private:
  // TryTake once the bias has ended.
  ABSL_ATTRIBUTE_NOINLINE bool TryTakeUnbiased(uint64_t& sequence) {
    // Acquire: of a shared counter the next number is larger than that of whoever changed the word.
    uint64_t seen = word_.load(std::memory_order_acquire);
    if ((seen & (kTaken | kClaimed | kBiased)) != 0) return false;
    // Of a shared counter this number is lost if the exchange fails. It can only succeed if nobody
    // has taken a number of this queue in the meantime, as each changes the word: so the numbers of
    // a queue increase.
    sequence = Number(seen);
    // Pairs with the releases in TryFree, Free and Unclaim: earlier operations happen before. Its
    // own release pairs with the acquire in NextSequence: that number is larger.
    return word_.compare_exchange_strong(seen, (seen | kTaken) + kOneSequence,
                                         std::memory_order_acq_rel, std::memory_order_relaxed);
  }

  // Above these bits stands the count of the sequence numbers that were given out.
  static constexpr uint64_t kTaken = 1, kClaimed = 2, kBiased = 4, kOneSequence = 8;

  uint64_t Number(uint64_t word) {
    return counter_ == nullptr ? word / kOneSequence
                               : counter_->fetch_add(1, std::memory_order_relaxed);
  }
  void EndBias();

  std::atomic<uint64_t> word_{kBiased};
  SequenceCounter* const counter_;
  base::ThreadBias bias_;
  std::atomic<bool> is_numbered_{false};  // Whether the operation that the bias holds has a number.
};

// Operations of a group run here. An operation that someone waits for anyway runs on the waiting
// thread if the queue is idle: no hand-off, since latency is the product. All others run on a
// thread that is started when it is needed and ends when it has been idle for a while. Thread-safe.
class OperationQueue {
 public:
  // Where sequence numbers come from if several queues share them: each gets increasing ones, with
  // gaps.
  using SequenceCounter = OperationLane::SequenceCounter;

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
  template <typename Operation>
  absl::Status Run(const Deadline& deadline, const Operation& operation,
                   absl::FunctionRef<void(const absl::Status& interruption)> end = DoNotEnd) {
    uint64_t sequence = 0;
    if (ABSL_PREDICT_FALSE(!TryEnter(sequence))) return RunSlowly(deadline, operation, end);
    // Whatever happens, the queue is left: otherwise it is never destroyed.
    const absl::Cleanup leave = [this] { Leave(); };
    return operation(sequence);
  }

  // The same for a caller that runs one operation itself if the queue is idle, as it mostly is:
  // whether it may, and with which sequence number. If so it calls Leave afterwards.
  ABSL_ATTRIBUTE_ALWAYS_INLINE bool TryEnter(uint64_t& sequence) { return lane_.TryTake(sequence); }
  void Leave() {
    if (ABSL_PREDICT_FALSE(!lane_.TryFree())) FreeClaimedLane();
  }

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

  static void DoNotEnd(const absl::Status&) {}
  absl::Status RunSlowly(const Deadline& deadline,
                         absl::FunctionRef<absl::Status(uint64_t sequence)> operation,
                         absl::FunctionRef<void(const absl::Status& interruption)> end);
  void FreeClaimedLane();

  const std::shared_ptr<State> state_;
  OperationLane& lane_;  // Of the state.
};

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_OPERATION_QUEUE_H_
