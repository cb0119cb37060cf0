#include "core/group/operation_queue.h"

#include <sched.h>

#include <list>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "core/base/thread.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

constexpr absl::Duration kIdleBeforeTheThreadEnds = absl::Seconds(2);

// How often a thread looks whether the operation has ended that took the lane while it was biased.
constexpr absl::Duration kBiasInterval = absl::Microseconds(100);

// A synchronous operation that waits for its turn on the queue's thread; guarded by the queue.
struct Turn {
  enum class Phase { kWaiting, kRunning, kDone, kGivenUp };

  bool has_begun() const { return phase != Phase::kWaiting; }
  bool is_done() const { return phase == Phase::kDone; }

  Phase phase = Phase::kWaiting;
  absl::Status result;
};

}  // namespace

void OperationLane::EndBias() {
  bias_.End();
  // An operation that has found the lane free takes its number at once; but it may have to get its
  // core first.
  while (bias_.IsHeld() && !is_numbered_.load(std::memory_order_acquire)) sched_yield();
  word_.fetch_and(~kBiased, std::memory_order_relaxed);
}

struct OperationQueue::State : std::enable_shared_from_this<OperationQueue::State> {
  explicit State(std::shared_ptr<SequenceCounter> from)
      : shared_counter(std::move(from)), lane(shared_counter.get()) {}

  void UnclaimIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (busy || !queue.empty() || awaiting_idle > 0 || stopping || lane.IsHeldByBias()) return;
    lane.Unclaim();
  }

  // Waits until the operation that took the lane while it was biased has ended, or `deadline`.
  void AwaitEndOfBias(const Deadline& deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    while (lane.IsHeldByBias() && !deadline.Expired()) {
      mutex.Unlock();
      absl::SleepFor(kBiasInterval);
      mutex.Lock();
    }
  }

  // Queues the operation and waits for it.
  absl::Status RunInTurn(const Deadline& deadline,
                         absl::FunctionRef<absl::Status(uint64_t sequence)> operation,
                         absl::FunctionRef<void(const absl::Status& interruption)> end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status EnsureThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Loop();
  void RunFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool HasTurn() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return !IsRunning() && (!queue.empty() || stopping);
  }
  bool IsRunning() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return busy || lane.IsTaken(); }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return !IsRunning() && queue.empty(); }
  bool IsOwnThread() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return has_thread && thread == std::this_thread::get_id();
  }
  bool IsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return !has_thread && !IsRunning(); }

  const std::shared_ptr<SequenceCounter> shared_counter;  // May be null.
  OperationLane lane;
  absl::Mutex mutex;
  std::list<std::function<void()>> queue ABSL_GUARDED_BY(mutex);
  bool busy ABSL_GUARDED_BY(mutex) = false;      // An operation is running that has not the lane.
  int awaiting_idle ABSL_GUARDED_BY(mutex) = 0;  // Threads in AwaitIdle.
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool has_thread ABSL_GUARDED_BY(mutex) = false;
  std::thread::id thread ABSL_GUARDED_BY(mutex);
};

OperationQueue::OperationQueue(std::shared_ptr<SequenceCounter> counter)
    : state_(std::make_shared<State>(std::move(counter))), lane_(state_->lane) {}

OperationQueue::~OperationQueue() {
  absl::MutexLock lock(&state_->mutex);
  state_->stopping = true;
  state_->lane.Claim();
  if (state_->IsOwnThread()) {
    while (!state_->queue.empty()) state_->RunFirst();
    return;
  }
  // Bounded by the operations, which the owner has aborted.
  state_->AwaitEndOfBias(Deadline(absl::InfiniteDuration()));
  state_->mutex.Await(absl::Condition(state_.get(), &State::IsOver));
}

absl::Status OperationQueue::RunSlowly(const Deadline& deadline,
                                       absl::FunctionRef<absl::Status(uint64_t)> operation,
                                       absl::FunctionRef<void(const absl::Status&)> end) {
  State& state = *state_;
  uint64_t sequence = 0;
  bool has_lane = false;
  {
    absl::MutexLock lock(&state.mutex);
    has_lane = state.lane.TryAdopt(sequence);
    if (!has_lane) {
      state.lane.Claim();
      if (!state.IsIdle()) return state.RunInTurn(deadline, operation, end);
      state.busy = true;
      sequence = state.lane.NextSequence();
    }
  }
  if (has_lane) {
    const absl::Cleanup leave = [this] { Leave(); };
    return operation(sequence);
  }
  // Whatever happens, the queue is not busy afterwards: otherwise it is never destroyed.
  const absl::Cleanup not_busy = [&state] {
    absl::MutexLock lock(&state.mutex);
    state.busy = false;
    state.UnclaimIfIdle();
  };
  return operation(sequence);
}

void OperationQueue::FreeClaimedLane() {
  absl::MutexLock lock(&state_->mutex);
  state_->lane.Free();
}

absl::Status OperationQueue::State::RunInTurn(const Deadline& deadline,
                                              absl::FunctionRef<absl::Status(uint64_t)> operation,
                                              absl::FunctionRef<void(const absl::Status&)> end) {
  SYNCLINE_RETURN_IF_ERROR(EnsureThread());
  const uint64_t sequence = lane.NextSequence();
  const auto turn = std::make_shared<Turn>();
  queue.push_back([turn, sequence, operation, &mutex = mutex] {
    {
      absl::MutexLock lock(&mutex);
      if (turn->phase == Turn::Phase::kGivenUp) return;
      turn->phase = Turn::Phase::kRunning;
    }
    absl::Status result = operation(sequence);
    absl::MutexLock lock(&mutex);
    turn->result = std::move(result);
    turn->phase = Turn::Phase::kDone;
  });
  if (!deadline.AwaitInterruptibly(mutex, absl::Condition(turn.get(), &Turn::has_begun))) {
    turn->phase = Turn::Phase::kGivenUp;
    SYNCLINE_RETURN_IF_ERROR(Interruption());
    return TimeoutError(absl::StrCat("could not begin within ",
                                     absl::FormatDuration(deadline.timeout()),
                                     ": operations issued before it have not finished"));
  }
  const absl::Condition is_done(turn.get(), &Turn::is_done);
  if (!Deadline(absl::InfiniteDuration()).AwaitInterruptibly(mutex, is_done)) {
    mutex.Unlock();
    end(Interruption());
    mutex.Lock();
    mutex.Await(is_done);  // It uses what is this thread's.
  }
  return turn->result;
}

absl::Status OperationQueue::Post(absl::FunctionRef<std::function<void()>(uint64_t)> issue) {
  absl::MutexLock lock(&state_->mutex);
  SYNCLINE_RETURN_IF_ERROR(state_->EnsureThread());
  state_->lane.Claim();
  state_->queue.push_back(issue(state_->lane.NextSequence()));
  return absl::OkStatus();
}

bool OperationQueue::IsIdle() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->IsIdle();
}

void OperationQueue::AwaitIdle(const Deadline& deadline) const {
  absl::MutexLock lock(&state_->mutex);
  if (state_->IsOwnThread()) return;
  ++state_->awaiting_idle;
  state_->lane.Claim();
  state_->AwaitEndOfBias(deadline);
  deadline.Await(state_->mutex, absl::Condition(state_.get(), &State::IsIdle));
  --state_->awaiting_idle;
  state_->UnclaimIfIdle();
}

absl::Status OperationQueue::State::EnsureThread() {
  if (has_thread) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(std::thread started,
                            base::StartThread("operations in the background",
                                              [state = shared_from_this()] { state->Loop(); }));
  started.detach();
  has_thread = true;
  return absl::OkStatus();
}

void OperationQueue::State::Loop() {
  absl::MutexLock lock(&mutex);
  thread = std::this_thread::get_id();
  AwaitEndOfBias(Deadline(absl::InfiniteDuration()));
  while (true) {
    const bool has_turn =
        mutex.AwaitWithTimeout(absl::Condition(this, &State::HasTurn), kIdleBeforeTheThreadEnds);
    if (queue.empty() && (stopping || !has_turn)) break;
    if (has_turn) RunFirst();
  }
  has_thread = false;
}

void OperationQueue::State::RunFirst() {
  std::function<void()> operation = std::move(queue.front());
  queue.pop_front();
  busy = true;
  mutex.Unlock();
  operation();
  operation = nullptr;  // What it holds is released without the lock.
  mutex.Lock();
  busy = false;
  UnclaimIfIdle();
}

}  // namespace syncline::group
