// EventCount: what threads of several processes sleep on in shared memory. A futex, and how many
// threads sleep there.
#ifndef SYNCLINE_CORE_BASE_EVENT_COUNT_H_
#define SYNCLINE_CORE_BASE_EVENT_COUNT_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include "absl/time/time.h"

namespace syncline::base {

inline constexpr size_t kCacheLine = 64;

// An event count (D. Vyukov's name) in shared memory, valid when all its bytes are zero. It says
// nothing about the condition that is waited for: a waiter checks that itself, before it sleeps and
// whenever it wakes. Any thread of any process that maps the memory may use it. shm::Waiter and
// queue::SleepOn sleep on it; each has its own way to notify, which avoids the system call while
// nobody sleeps.
struct alignas(kCacheLine) EventCount {
  std::atomic<uint32_t> epoch;     // The futex: changes with every wake-up.
  std::atomic<uint32_t> sleepers;  // Threads that sleep here, or are about to.
};

// Wakes up to `count` threads that sleep on `event`. Takes a system call.
inline void Wake(EventCount& event, int count) {
  event.epoch.fetch_add(1);
  syscall(SYS_futex, &event.epoch, FUTEX_WAKE, count, nullptr, nullptr, 0);
}

// Wakes all of them.
inline void WakeAll(EventCount& event) { Wake(event, INT32_MAX); }

// Sleeps until `event` is woken, `limit` has passed or a signal comes; not at all if `epoch` is no
// longer the event's.
inline void SleepWhileEpochIs(EventCount& event, uint32_t epoch, absl::Duration limit) {
  const timespec relative = absl::ToTimespec(limit);
  syscall(SYS_futex, &event.epoch, FUTEX_WAIT, epoch, &relative, nullptr, 0);
}

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_EVENT_COUNT_H_
