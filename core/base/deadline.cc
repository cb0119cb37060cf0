#include "syncline/deadline.h"

#include "absl/base/thread_annotations.h"

namespace syncline {

bool Deadline::AwaitInterruptibly(absl::Mutex& mutex, const absl::Condition& condition) const {
  if (!InterruptScope::IsOpen()) return Await(mutex, condition);
  return AwaitInterruptibly(mutex, condition, [] {});
}

bool Deadline::AwaitInterruptibly(absl::Mutex& mutex, const absl::Condition& condition,
                                  absl::FunctionRef<void()> each_slice) const
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  while (!mutex.AwaitWithTimeout(condition, std::min(Remaining(), kInterruptInterval))) {
    if (Expired()) return false;
    each_slice();
    mutex.Unlock();
    const bool goes_on = CheckInterrupt().ok();
    mutex.Lock();
    if (!goes_on) return condition.Eval();
  }
  return true;
}

}  // namespace syncline
