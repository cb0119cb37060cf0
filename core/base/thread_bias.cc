#include "core/base/thread_bias.h"

#include <sched.h>

namespace syncline::base {

void BiasedMutex::LockSlowly() {
  mutex_.Lock();
  if (bias_.Adopt()) {
    // Nobody can have ended the bias: that takes mutex_.
    const bool is_held = bias_.TryHold();
    mutex_.Unlock();
    if (is_held) return;
    mutex_.Lock();
  }
  bias_.End();
  // Sections are short, so the owner lets go soon; it may have to get its core first.
  while (bias_.IsHeld()) sched_yield();
}

}  // namespace syncline::base
