// Preemption: stops all ranks of a job at the same step, so that they can save and be started again
// later.
#ifndef SYNCLINE_PREEMPTION_H_
#define SYNCLINE_PREEMPTION_H_

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
#include "syncline/deadline.h"
#include "syncline/fork.h"
#include "syncline/store.h"

namespace syncline {

// Every rank has one, and calls Reached at the beginning of each step, with the same numbers as all
// others. A notice is given by any rank, or by setting kNoticeKey in the store (below the prefix of
// the round). After it, Reached returns true at one step that is the same on all ranks: the first
// that none of them has begun.
//
//   SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Preemption> preemption,
//                             Preemption::Create(store, rank, size, Preemption::Options()));
//   for (int64_t step = 0;; ++step) {
//     SYNCLINE_ASSIGN_OR_RETURN(bool stop, preemption->Reached(step));
//     if (stop) return Save(step);
//     Train(step);
//   }
//
// A thread polls the store for the notice. It then publishes the last step that its rank has
// reached, and from there on Reached waits until all ranks have published; the agreed step is the
// one after the highest. So no rank waits while another one needs it for a step that it has begun,
// whatever collectives are in flight, and no step costs a message. docs/internals/join_keys.md has
// the keys.
//
// One agreement uses up the keys: a job that goes on after one needs a new part of the store, as
// each round of an elastic job has. Thread-safe. It owns its thread and shares the store; the
// destructor ends the thread within a fraction of a second. In a child of fork Reached is a
// BackendError.
class Preemption {
 public:
  // The key of a notice. Its value does not matter.
  static constexpr absl::string_view kNoticeKey = "preempt/notice";

  struct Options {
    // After a notice, the time for all ranks to publish.
    absl::Duration timeout = absl::Minutes(1);
    // Between two polls for a notice. Longer on more than 100 ranks, so that the store gets at most
    // 1000 polls a second.
    absl::Duration interval = absl::Milliseconds(100);
  };

  static absl::StatusOr<std::shared_ptr<Preemption>> Create(std::shared_ptr<Store> store, int rank,
                                                            int size, const Options& options);
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  // Asks all ranks to stop. Returns at once: the thread sets the notice in the store, and tries
  // again while the store cannot be reached.
  void GiveNotice();

  // Call it when this rank is about to begin `step`. Returns whether to save and stop instead: true
  // from the agreed step on. Steps count up from 0, not necessarily by one. Waits only between a
  // notice and the agreement.
  //   TimeoutError   it names the ranks that have not published
  //   ArgumentError  a step is negative or lower than the one before
  //   StoreError, NetworkError  of the store, while the ranks agreed
  absl::StatusOr<bool> Reached(int64_t step);

  // The agreed step; -1 while there is none.
  int64_t agreed_step() const { return agreed_.load(std::memory_order_acquire); }

 private:
  Preemption(std::shared_ptr<Store> store, int rank, int size, const Options& options);

  void Watch();  // The thread's body.
  // Waits for a notice; false if the object is being destroyed.
  bool AwaitNotice();
  // Publishes, and returns the agreed step.
  absl::StatusOr<int64_t> AgreeOnStep();
  // As Store::Wait, in slices, so that the destructor need not wait for long.
  absl::Status WaitForAll(const std::vector<std::string>& keys, const Deadline& deadline);
  // The error after a timeout: it names the ranks that have not published. `timeout` if all have.
  absl::Status MissingRanksError(const absl::Status& timeout);

  const std::shared_ptr<Store> store_;
  const int rank_;
  const int size_;
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

#endif  // SYNCLINE_PREEMPTION_H_
