#include "syncline/fork.h"

#include <pthread.h>

namespace syncline {

// From the first ForkGuard on.
std::atomic<int> internal::fork_generation{0};

namespace {

void WatchForks() {
  static const int registered = pthread_atfork(
      nullptr, nullptr, [] { internal::fork_generation.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

}  // namespace

ForkGuard::ForkGuard() {
  WatchForks();
  generation_ = internal::fork_generation.load(std::memory_order_relaxed);
}

}  // namespace syncline
