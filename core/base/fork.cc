#include "syncline/fork.h"

#include <pthread.h>

#include <atomic>

namespace syncline {
namespace {

std::atomic<int> generation{0};

// Counts the forks above this process, from the first ForkGuard on.
void Watch() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

int Generation() { return generation.load(std::memory_order_relaxed); }

}  // namespace

ForkGuard::ForkGuard() {
  Watch();
  generation_ = Generation();
}

bool ForkGuard::InChild() const { return generation_ != Generation(); }

}  // namespace syncline
