// What a thread sleeps on in shared memory: a futex, and how many threads sleep there.
#ifndef SYNCLINE_BACKENDS_SHM_EVENT_COUNT_H_
#define SYNCLINE_BACKENDS_SHM_EVENT_COUNT_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace syncline::shm {

inline constexpr size_t kCacheLine = 64;

// An event count (D. Vyukov's name) in shared memory, valid when all its bytes are zero. It says
// nothing about the condition that is waited for: a waiter checks that itself, before it sleeps and
// whenever it wakes. Any thread of any process that maps the segment may use it; Waiter is the only
// class that sleeps on it.
struct alignas(kCacheLine) EventCount {
  std::atomic<uint32_t> epoch;     // The futex: changes with every wake-up.
  std::atomic<uint32_t> sleepers;  // Threads that sleep here, or are about to.
};

// Wakes all threads that sleep on `event`. Takes a system call: Waiter::Notify avoids it while
// nobody sleeps.
inline void WakeAll(EventCount& event) {
  event.epoch.fetch_add(1);
  syscall(SYS_futex, &event.epoch, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_EVENT_COUNT_H_
