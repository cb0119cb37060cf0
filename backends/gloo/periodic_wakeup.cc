#include "backends/gloo/periodic_wakeup.h"

#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "core/base/thread.h"
#include "syncline/fork.h"
#include "syncline/interrupt.h"

namespace syncline::gloo_backend {

// The thread and its list of objects. Never destroyed: the thread runs until the process ends.
class WakeupThread {
 public:
  // A child of fork() has its parent's memory without its threads, so it gets a new object. The
  // acquire pairs with the compare_exchange below: whoever sees the pointer sees the object.
  static WakeupThread& Get() {
    static std::atomic<WakeupThread*> instance{nullptr};
    WakeupThread* present = instance.load(std::memory_order_acquire);
    if (present != nullptr && !present->fork_guard_.InChild()) return *present;
    auto* const made = new WakeupThread;
    if (instance.compare_exchange_strong(present, made)) return *made;
    delete made;
    return *present;
  }

  void Add(PeriodicWakeup* wakeup) {
    absl::MutexLock lock(&mutex_);
    wakeup->next_ = first_;
    if (first_ != nullptr) first_->previous_ = wakeup;
    first_ = wakeup;
    if (!has_thread_) Start();
  }

  void Remove(PeriodicWakeup* wakeup) {
    absl::MutexLock lock(&mutex_);
    (wakeup->previous_ == nullptr ? first_ : wakeup->previous_->next_) = wakeup->next_;
    if (wakeup->next_ != nullptr) wakeup->next_->previous_ = wakeup->previous_;
  }

 private:
  void Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto thread = base::StartThread("waits inside Gloo", [this] { Loop(); });
    has_thread_ = thread.ok();
    if (has_thread_) thread->detach();
  }

  static bool HasWork(PeriodicWakeup** first) { return *first != nullptr; }

  void Loop() {
    while (true) {
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(&HasWork, &first_));
      }
      absl::SleepFor(kInterruptInterval);
      absl::MutexLock lock(&mutex_);
      for (PeriodicWakeup* wakeup = first_; wakeup != nullptr; wakeup = wakeup->next_) {
        wakeup->wake_();
      }
    }
  }

  const ForkGuard fork_guard_;
  absl::Mutex mutex_;
  bool has_thread_ ABSL_GUARDED_BY(mutex_) = false;
  PeriodicWakeup* first_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

PeriodicWakeup::PeriodicWakeup(absl::FunctionRef<void()> wake) : wake_(wake) {
  WakeupThread::Get().Add(this);
}

PeriodicWakeup::~PeriodicWakeup() { WakeupThread::Get().Remove(this); }

}  // namespace syncline::gloo_backend
