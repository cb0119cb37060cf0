#include "backends/gloo/nudge.h"

#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "core/base/fork.h"
#include "core/base/interrupt.h"
#include "core/base/thread.h"

namespace syncline {

// The thread and its list. Never destroyed: the thread runs until the process ends.
class Nudger {
 public:
  // A child of fork() has its parent's memory without its threads, so it gets a new one.
  static Nudger& Get() {
    static std::atomic<Nudger*> instance{nullptr};
    Nudger* present = instance.load(std::memory_order_acquire);
    if (present != nullptr && !present->fork_guard_.InChild()) return *present;
    auto* const made = new Nudger;
    if (instance.compare_exchange_strong(present, made)) return *made;
    delete made;
    return *present;
  }

  void Add(Nudge* nudge) {
    absl::MutexLock lock(&mutex_);
    nudge->next_ = first_;
    if (first_ != nullptr) first_->previous_ = nudge;
    first_ = nudge;
    if (!has_thread_) Start();
  }

  void Remove(Nudge* nudge) {
    absl::MutexLock lock(&mutex_);
    (nudge->previous_ == nullptr ? first_ : nudge->previous_->next_) = nudge->next_;
    if (nudge->next_ != nullptr) nudge->next_->previous_ = nudge->previous_;
  }

 private:
  void Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto thread = StartThread("waits inside Gloo", [this] { Loop(); });
    has_thread_ = thread.ok();
    if (has_thread_) thread->detach();  // Else the next wait tries again.
  }

  void Loop() {
    while (true) {
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(+[](Nudge** first) { return *first != nullptr; }, &first_));
      }
      absl::SleepFor(kInterruptInterval);
      absl::MutexLock lock(&mutex_);
      for (Nudge* nudge = first_; nudge != nullptr; nudge = nudge->next_) {
        nudge->wake_();
      }
    }
  }

  const ForkGuard fork_guard_;
  absl::Mutex mutex_;
  bool has_thread_ ABSL_GUARDED_BY(mutex_) = false;
  Nudge* first_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

Nudge::Nudge(absl::FunctionRef<void()> wake) : wake_(wake) { Nudger::Get().Add(this); }

Nudge::~Nudge() { Nudger::Get().Remove(this); }

}  // namespace syncline
