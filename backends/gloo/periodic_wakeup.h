// Wakes a wait inside Gloo now and then, so that the waiting thread can look at interrupts.
//
// Gloo's own timeout closes the connections, so a wait cannot be cut into slices with it. But Gloo
// can be told to return from a wait early, after which the wait can be taken up again.
#ifndef SYNCLINE_BACKENDS_GLOO_PERIODIC_WAKEUP_H_
#define SYNCLINE_BACKENDS_GLOO_PERIODIC_WAKEUP_H_

#include "absl/functional/function_ref.h"

namespace syncline::gloo_backend {

// While an object lives, `wake` is called about every kInterruptInterval, on a thread that all
// groups of the process share and that the first object starts. `wake` must not block. If the
// thread cannot be started, `wake` is not called; the next object tries again.
//
// Any thread may have objects. After fork() the child gets a thread of its own.
class PeriodicWakeup {
 public:
  explicit PeriodicWakeup(absl::FunctionRef<void()> wake);
  ~PeriodicWakeup();

  PeriodicWakeup(const PeriodicWakeup&) = delete;
  PeriodicWakeup& operator=(const PeriodicWakeup&) = delete;

 private:
  friend class WakeupThread;  // Links the objects in a list.

  const absl::FunctionRef<void()> wake_;
  PeriodicWakeup* previous_ = nullptr;
  PeriodicWakeup* next_ = nullptr;
};

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_PERIODIC_WAKEUP_H_
