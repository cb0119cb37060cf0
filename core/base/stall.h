// Says that an operation has been waiting for long, and for whom: once after SYNCLINE_STALL_WARNING
// seconds (10; 0 turns it off), and again each time that the wait has become twice as long.
#ifndef SYNCLINE_CORE_BASE_STALL_H_
#define SYNCLINE_CORE_BASE_STALL_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace syncline::base {

// SYNCLINE_STALL_WARNING, read once; InfiniteDuration if it is 0.
absl::Duration StallWarningAfter();

// Tells when a wait has become long enough for a warning. Not thread-safe.
class StallTimer {
 public:
  // True once when StallWarningAfter() has passed since the first call, then at twice, four times,
  // ... that. Reads the clock, so it belongs to the part of a wait that is slow already.
  bool IsDue();
  absl::Duration waited() const;  // Whole milliseconds.

 private:
  int64_t began_ = 0;  // 0: not yet.
  absl::Duration next_;
};

// For transports whose waits cannot know which rank is missing: the code that began the operation
// on this thread opens a watch, and the waits below it call Look. The innermost watch counts. Costs
// two accesses to a thread-local variable before a wait is long.
class StallWatch {
 public:
  // Called on this thread, without any lock held: first after a quarter of StallWarningAfter(),
  // which is the time to tell others that this rank waits; then when a StallTimer would be due.
  using OnStall = absl::FunctionRef<void(absl::Duration waited, bool is_due)>;

  explicit StallWatch(OnStall on_stall) : on_stall_(on_stall), outer_(current_) { current_ = this; }
  ~StallWatch() { current_ = outer_; }

  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  static bool IsOpen() { return current_ != nullptr; }
  // For a wait that has become long; may be called often.
  static void Look();

 private:
  void LookAt(int64_t now);

  const OnStall on_stall_;
  StallWatch* const outer_;
  int64_t began_ = 0;  // The first look.
  int64_t next_ = 0;
  bool has_told_ = false;

  static inline thread_local StallWatch* current_ = nullptr;
};

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_STALL_H_
