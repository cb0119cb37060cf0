// Lets a thread that waits inside Gloo look around now and then.
//
// Gloo's own timeout closes the connections, so a wait cannot be cut into slices with it. But Gloo
// can be told to return from a wait early, after which the wait can be taken up again.
#ifndef SYNCLINE_BACKENDS_GLOO_NUDGE_H_
#define SYNCLINE_BACKENDS_GLOO_NUDGE_H_

#include "absl/functional/function_ref.h"

namespace syncline {

// While it lives, `wake` is called about every kInterruptInterval, on a thread that all groups of
// the process share. `wake` must not block. If the thread cannot be started, nothing is called.
class Nudge {
 public:
  explicit Nudge(absl::FunctionRef<void()> wake);
  ~Nudge();

  Nudge(const Nudge&) = delete;
  Nudge& operator=(const Nudge&) = delete;

 private:
  friend class Nudger;

  const absl::FunctionRef<void()> wake_;
  Nudge* previous_ = nullptr;
  Nudge* next_ = nullptr;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_GLOO_NUDGE_H_
