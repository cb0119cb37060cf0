// A pair of fences of which the frequent one costs nothing.
#ifndef SYNCLINE_CORE_BASE_ASYMMETRIC_FENCE_H_
#define SYNCLINE_CORE_BASE_ASYMMETRIC_FENCE_H_

#include <atomic>

#include "absl/base/optimization.h"

namespace syncline::base {

// Two threads that each write one variable and then read the other's need a full fence in between,
// or both may miss what the other has written (Dekker's algorithm). These two are such fences where
// one side is run all the time and the other hardly ever: with a heavy fence on one side, a light
// one is enough on the other. The names are those of P1202 (D. Goldblatt, "Asymmetric Fences"). For
// threads of one process.
//
//   // The frequent side:                        // The rare side:
//   is_busy.store(true, relaxed);                is_ending.store(true, relaxed);
//   AsymmetricThreadFenceLight();                AsymmetricThreadFenceHeavy();
//   if (is_ending.load(acquire)) ...             if (is_busy.load(acquire)) ...

namespace internal {
// Whether the kernel makes the heavy fence, with membarrier(2). False until this is initialized,
// which may be later than code that runs before main(): the light fence is then a full one.
extern std::atomic<bool> has_membarrier;

void FullFence();
}  // namespace internal

// Keeps the compiler from moving accesses across; the processor is stopped by the other side.
inline void AsymmetricThreadFenceLight() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (ABSL_PREDICT_TRUE(internal::has_membarrier.load(std::memory_order_relaxed))) return;
  internal::FullFence();
}

// Has every thread of the process that runs now pass a full fence. Takes a microsecond or more.
void AsymmetricThreadFenceHeavy();

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_ASYMMETRIC_FENCE_H_
