#include "core/base/asymmetric_fence.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace syncline::base {
namespace {

bool Membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

// A process must register before it may use the expedited command, and keeps that in children that
// it forks.
std::atomic<bool> internal::has_membarrier{Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)};

// ThreadSanitizer does not know fences, and the compiler warns of them there. What is fenced here
// are atomic variables, of which it knows all that it needs.
void internal::FullFence() {
#if defined(__SANITIZE_THREAD__)
  static std::atomic<int> word{0};
  word.fetch_add(0, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

void AsymmetricThreadFenceHeavy() {
  internal::FullFence();
  if (!internal::has_membarrier.load(std::memory_order_relaxed)) return;
  if (Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  // A filter of system calls that came later forbids it. From now on light fences are full ones,
  // and what other threads wrote just before is visible long before this has passed.
  internal::has_membarrier.store(false, std::memory_order_relaxed);
  absl::SleepFor(absl::Milliseconds(10));
}

}  // namespace syncline::base
