// Copies data to memory that other ranks read, through the caches or past them.
#ifndef SYNCLINE_BACKENDS_SHM_ADAPTIVE_COPIER_H_
#define SYNCLINE_BACKENDS_SHM_ADAPTIVE_COPIER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backends/shm/byte_range.h"
#include "backends/shm/thresholds.h"

namespace syncline::shm {

// Moves the line to this core's cache, and out of all others.
inline void PrefetchToWrite(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

// Copies with nontemporal stores, past the caches. They are complete before any later store, so a
// release store may follow as after a memcpy.
void NontemporalCopy(void* to, const void* from, size_t bytes);

// Copies the way that is faster at present. Between cores that share a cache, that is through the
// cache. Otherwise a line that the reader still has in its own cache costs the writer 20 ns and
// more, one after the other; then it is faster to write past the caches, and let the reader read
// main memory. Where ranks run may change at any time, so this measures: after kManySlowTrials
// slow copies, the next kCopyTrialInterval go past the caches. Thread-safe; holds no memory.
class AdaptiveCopier {
 public:
  // Copies `bytes`, which must not overlap. Call it before the release store that tells a reader.
  void Copy(void* to, const void* from, size_t bytes) {
    if (bytes < kTimedCopyMinBytes) return CopyFew(to, from, bytes);
    CopyTimed(to, from, bytes);
  }

  // Whether the next copy of at least kTimedCopyMinBytes bytes will go past the caches.
  bool bypasses_caches() const { return until_trial_.load(std::memory_order_relaxed) > 0; }

  // Whether to have others read by CMA what could be copied, as copies through the caches are slow.
  // Once in kCmaTrialInterval calls it is false all the same, and the next copy is a trial.
  bool PrefersCma() {
    if (!AreSlow(slow_trials_.load(std::memory_order_relaxed))) return false;
    const int left = until_copy_.load(std::memory_order_relaxed);
    until_copy_.store(left > 0 ? left - 1 : kCmaTrialInterval, std::memory_order_relaxed);
    if (left == 0) {
      // If the next copy is fast, copies are not slow any more.
      slow_trials_.store((1 << (kManySlowTrials - 1)) - 1, std::memory_order_relaxed);
      until_trial_.store(0, std::memory_order_relaxed);
    }
    return left > 0;
  }

 private:
  static constexpr uint32_t kTrialsMask = (1 << kRememberedTrials) - 1;

  // Fewer may have met a page that was touched for the first time, or another thread's turn.
  static bool AreSlow(uint32_t trials) { return __builtin_popcount(trials) >= kManySlowTrials; }

  void CopyTimed(void* to, const void* from, size_t bytes);

  // Copies until the next trial. Relaxed, as the next: they are guesses, and order no data. Threads
  // may lose each other's decrements: then the next trial comes a little later.
  std::atomic<int> until_trial_{0};
  std::atomic<int> until_copy_{kCmaTrialInterval};  // Calls of PrefersCma until it is false.
  std::atomic<uint32_t> slow_trials_{0};  // Of the last, a bit for each; of the very last 1.
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_ADAPTIVE_COPIER_H_
