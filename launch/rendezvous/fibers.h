// Cooperative threads on a simulated clock, for tests.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_FIBERS_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_FIBERS_H_

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"

namespace syncline::launch {

// Runs blocking functions one at a time, each on its own stack. Time passes only while all of them
// wait, and the order in which they run is deterministic: the same program gives the same run. Owns
// the stacks; all fibers must have ended before it is destroyed. Not thread-safe.
class Fibers {
 public:
  using Condition = std::function<bool()>;

  Fibers();
  ~Fibers();

  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  absl::Time now() const { return now_; }

  // Starts a fiber. While *stopped is true it does not run; null: it always may.
  void Spawn(std::function<void()> body, const bool* stopped = nullptr);

  // Lets the fibers run until `time`, or until all have ended.
  void RunUntil(absl::Time time);
  bool all_ended() const { return fibers_.empty(); }

  // In a fiber: waits until the condition holds, or until the time. Returns whether it holds. The
  // condition is evaluated again after each Changed().
  bool Await(const Condition& condition, absl::Time until);
  void Sleep(absl::Duration duration);

  // Something that a condition depends on has changed.
  void Changed() { changed_ = true; }

 private:
  struct Fiber;

  static void Enter(unsigned low, unsigned high);
  Fiber* Next(absl::Time limit);
  void SwitchTo(Fiber* fiber);
  void SwitchBack();

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  bool changed_ = false;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<std::unique_ptr<Fiber>> ended_;  // Their stacks are used again.
  Fiber* current_ = nullptr;
  ucontext_t main_;
  void* main_fake_stack_ = nullptr;
  const void* main_stack_ = nullptr;
  size_t main_stack_size_ = 0;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_FIBERS_H_
