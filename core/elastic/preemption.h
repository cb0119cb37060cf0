// Stopping all ranks of a job at the same step, so that they can save and be started again later.
#ifndef SYNCLINE_CORE_ELASTIC_PREEMPTION_H_
#define SYNCLINE_CORE_ELASTIC_PREEMPTION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/fork.h"
#include "core/store/store.h"

namespace syncline {

// Every rank has one, and calls Reached at the beginning of each step, with the same numbers as all
// others. Once a notice has been given, by any rank or by whoever sets kNoticeKey in the store
// (below the prefix of the round), Reached returns true at one step that is the same on all ranks,
// the first that none of them has begun.
//
// How: a thread looks for the notice. It then publishes the last step that its rank has reached,
// and from there on Reached waits until all have published; the step agreed on is the one after
// the highest. So no rank waits that another one needs for a step it has begun, whatever
// collectives are in flight, and no step costs a message.
//
// The keys are used up by one agreement: a job that goes on after one needs a new part of the
// store, as each round of an elastic job has. Thread-safe. Not to be used in a child of fork.
class Preemption {
 public:
  // Whatever its value.
  static constexpr absl::string_view kNoticeKey = "preempt/notice";

  struct Options {
    // For all ranks to publish, after a notice.
    absl::Duration timeout = absl::Minutes(1);
    // Between two looks for a notice; longer on more than 100 ranks, so that the store is not asked
    // more than 1000 times a second.
    absl::Duration interval = absl::Milliseconds(100);
  };

  static absl::StatusOr<std::shared_ptr<Preemption>> Create(std::shared_ptr<Store> store,
                                                            int64_t rank, int64_t size,
                                                            const Options& options);
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  // Asks all ranks to stop. Returns at once: the store is told in the background, again and again
  // while it cannot be reached.
  void GiveNotice();

  // This rank is about to begin `step`; steps count up from 0, not necessarily by one. Whether to
  // save and stop instead: true from the step agreed on. Waits only between a notice and the
  // agreement; a TimeoutError names the ranks that have not published. ArgumentError if a step is
  // negative or lower than the one before.
  absl::StatusOr<bool> Reached(int64_t step);

  // The step agreed on; -1 while there is none.
  int64_t agreed_step() const { return agreed_.load(std::memory_order_acquire); }

 private:
  Preemption(std::shared_ptr<Store> store, int64_t rank, int64_t size, const Options& options);

  void Watch();  // The thread's body.
  // Waits for a notice; false if the object is being destroyed.
  bool AwaitNotice();
  // Publishes, and returns the step agreed on.
  absl::StatusOr<int64_t> Agree();
  // As Store::Wait, in pieces, so that the destructor is not held up.
  absl::Status WaitForAll(const std::vector<std::string>& keys, const Deadline& deadline);
  // After a timeout, `silence` if it cannot be said better: who has not published.
  absl::Status Missing(const absl::Status& silence);

  const std::shared_ptr<Store> store_;
  const int64_t rank_;
  const int64_t size_;
  const Options options_;
  const ForkGuard fork_;
  std::atomic<int64_t> agreed_{-1};

  absl::Mutex mutex_;
  int64_t last_ ABSL_GUARDED_BY(mutex_) = -1;  // The last step that was reached.
  bool is_published_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_settled_ ABSL_GUARDED_BY(mutex_) = false;  // There is an agreement, or an error.
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  bool gives_notice_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_ELASTIC_PREEMPTION_H_
