#include "syncline/interrupt.h"

#include <algorithm>
#include <chrono>

#include "absl/time/clock.h"

namespace syncline {
namespace {

const int64_t kBetweenChecks = absl::ToInt64Nanoseconds(kInterruptInterval / 2);

int64_t Now() {  // Nanoseconds.
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

absl::Status InterruptedError(absl::string_view message) { return absl::CancelledError(message); }

absl::Status InterruptScope::Look() {
  if (!status_.ok()) return status_;
  const int64_t now = Now();
  // The first look only notes the time: a check may wait for the interpreter's lock, which is too
  // much for a wait that is over soon.
  if (next_ == 0) {
    next_ = now + kBetweenChecks;
  } else if (now >= next_) {
    status_ = check_();
    next_ = Now() + kBetweenChecks;
  }
  return status_;
}

absl::Status CheckInterrupt() {
  InterruptScope* const scope = InterruptScope::current_;
  return scope == nullptr ? absl::OkStatus() : scope->Look();
}

absl::Status Interruption() {
  const InterruptScope* const scope = InterruptScope::current_;
  return scope == nullptr ? absl::OkStatus() : scope->status();
}

absl::Status SleepInterruptibly(absl::Duration duration) {
  while (InterruptScope::IsOpen() && duration > kInterruptInterval) {
    absl::SleepFor(kInterruptInterval);
    duration -= kInterruptInterval;
    const absl::Status status = CheckInterrupt();
    if (!status.ok()) return status;
  }
  absl::SleepFor(duration);
  return CheckInterrupt();
}

}  // namespace syncline
