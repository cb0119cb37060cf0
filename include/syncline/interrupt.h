// Interrupts: how Ctrl-C in Python and Thread.interrupt in Java end the long waits of a thread.
//
// A language binding opens an InterruptScope around each call into C++. Whatever waits for long
// inside the call waits in slices of at most kInterruptInterval, and calls CheckInterrupt after
// each:
//
//   while (!ready()) {
//     WaitForAtMost(std::min(deadline.Remaining(), kInterruptInterval));
//     SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
//   }
//
// Deadline::AwaitInterruptibly and all calls of this API that wait do this already. Threads without
// a scope, such as those that run asynchronous operations, are never interrupted.
//
// What an interrupted call leaves behind depends on the wait: a collective fails its group, since
// the other ranks would wait for this one in vain; a wait for a key or for a Work ends alone.
#ifndef SYNCLINE_INTERRUPT_H_
#define SYNCLINE_INTERRUPT_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace syncline {

// How long an interrupt may go unnoticed.
inline constexpr absl::Duration kInterruptInterval = absl::Milliseconds(50);

// The error of a call that was interrupted, and whether an error is one.
absl::Status InterruptedError(absl::string_view message);  // CANCELLED
inline bool IsInterrupted(const absl::Status& status) { return absl::IsCancelled(status); }

// Lets `check` interrupt the waits of this thread while the scope lives. Scopes nest: the innermost
// one counts. Costs two accesses to a thread-local variable, and nothing else before a wait is
// long.
class InterruptScope {
 public:
  // Returns an InterruptedError if this thread is to return to its caller. Called without any lock
  // held, so it may run code of the user.
  using Check = absl::FunctionRef<absl::Status()>;

  explicit InterruptScope(Check check) : check_(check), outer_(current_) { current_ = this; }
  ~InterruptScope() { current_ = outer_; }

  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  // Whether this thread has a scope.
  static bool IsOpen() { return current_ != nullptr; }

  // What `check` has returned: not OK once it has interrupted a wait.
  const absl::Status& status() const { return status_; }

 private:
  friend class Uninterruptible;
  friend absl::Status CheckInterrupt();
  friend absl::Status Interruption();

  absl::Status Look();

  const Check check_;
  InterruptScope* const outer_;
  absl::Status status_;
  int64_t next_ = 0;  // When to call check_ again, on the monotonic clock; 0: not known yet.

  static inline thread_local InterruptScope* current_ = nullptr;
};

// Shields waits that must not end early, such as those that tell the peers why this rank leaves.
class Uninterruptible {
 public:
  Uninterruptible() : shielded_(InterruptScope::current_) { InterruptScope::current_ = nullptr; }
  ~Uninterruptible() { InterruptScope::current_ = shielded_; }

  Uninterruptible(const Uninterruptible&) = delete;
  Uninterruptible& operator=(const Uninterruptible&) = delete;

 private:
  InterruptScope* const shielded_;
};

// For a wait that has become long: an InterruptedError if this thread is to return, and from then
// on for as long as its scope lives. May be called often: it asks the scope's check at most every
// kInterruptInterval / 2. Requires that no lock is held.
absl::Status CheckInterrupt();

// The last result of CheckInterrupt on this thread, without a new check. May be called with locks
// held.
absl::Status Interruption();

// Sleeps for `duration`, or until this thread is interrupted; returns that.
absl::Status SleepInterruptibly(absl::Duration duration);

}  // namespace syncline

#endif  // SYNCLINE_INTERRUPT_H_
