// ForkGuard: tells whether this process was forked after an object was made.
#ifndef SYNCLINE_FORK_H_
#define SYNCLINE_FORK_H_

#include <atomic>

namespace syncline {

namespace internal {
extern std::atomic<int> fork_generation;  // Counts the forks above this process.
}  // namespace internal

// A child of fork has its parent's memory but none of its threads, and shares its connections. An
// object that uses either must not be used in the child: it has a ForkGuard as a member, and asks
// it. Thread-safe.
class ForkGuard {
 public:
  ForkGuard();

  // Whether this process is a child that was forked after this guard was made. Costs one load.
  bool InChild() const {
    return generation_ != internal::fork_generation.load(std::memory_order_relaxed);
  }

 private:
  int generation_;
};

}  // namespace syncline

#endif  // SYNCLINE_FORK_H_
