// Waits on the events of a TensorQueue, and wakes who does.
#ifndef SYNCLINE_CORE_QUEUE_WAIT_H_
#define SYNCLINE_CORE_QUEUE_WAIT_H_

#include <sched.h>

#include <chrono>

#include "absl/time/time.h"
#include "core/base/event_count.h"

namespace syncline::queue {

// How long a wait yields its core before it sleeps: as long as a sleep and a wake-up cost, or a
// copy of some hundred KiB takes.
inline constexpr auto kYieldTime = std::chrono::microseconds(50);

// Call it after a change that makes a condition true for which threads sleep on `event`. Wakes
// `count` of them. While nobody sleeps it costs one atomic operation.
//
// The change must come before the load of `sleepers`, and a sleeper's addition to `sleepers` before
// its last look at the condition. Both are read-modify-write operations of one variable, so one
// comes first: if the sleeper's, this one sees it; if this one, it synchronises with the sleeper's,
// whose look then sees the change.
inline void Notify(base::EventCount& event, int count) {
  if (event.sleepers.fetch_add(0) != 0) base::Wake(event, count);
}

// Yields the core until `ready()`, for kYieldTime. Returns whether it is.
template <typename Ready>
bool YieldUntil(const Ready& ready) {
  const auto end = std::chrono::steady_clock::now() + kYieldTime;
  do {
    if (ready()) return true;
    sched_yield();
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

// Sleeps until a notification of `event`, or for `limit`, unless `ready()`. May return early.
template <typename Ready>
void SleepOn(base::EventCount& event, absl::Duration limit, const Ready& ready) {
  event.sleepers.fetch_add(1);
  // Read before the last look: a notification after it changes the epoch.
  const uint32_t epoch = event.epoch.load();
  if (!ready()) base::SleepWhileEpochIs(event, epoch, limit);
  event.sleepers.fetch_sub(1);
}

}  // namespace syncline::queue

#endif  // SYNCLINE_CORE_QUEUE_WAIT_H_
