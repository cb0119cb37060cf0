// Tells other nodes of the last calls where no later call does.
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_RECORD_TELLER_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_RECORD_TELLER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace syncline::hierarchical {

// Records of calls go along with those of later calls (RailHistory). If none follows, because this
// rank computes or waits for something else, a thread sends them. It sleeps until there is
// something to tell.
//
// Thread-safe.
class RecordTeller {
 public:
  // It tells this long after ToldLater, and tries again as often.
  static constexpr absl::Duration kInterval = absl::Milliseconds(10);

  // `tell` sends the records, and returns false if not all have gone, as while a call is under
  // way. It must not wait, and may be called until the destructor returns. BackendError if no
  // thread can be started.
  static absl::StatusOr<std::unique_ptr<RecordTeller>> Start(std::function<bool()> tell);

  RecordTeller(const RecordTeller&) = delete;
  RecordTeller& operator=(const RecordTeller&) = delete;
  ~RecordTeller();

  // There are records to tell; call it while `tell` would return false.
  void ToldLater();

 private:
  RecordTeller() = default;

  void Run(const std::function<bool()>& tell);

  std::atomic<bool> is_awaited_{false};  // Written under mutex_.
  absl::Mutex mutex_;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_RECORD_TELLER_H_
