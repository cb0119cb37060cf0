// ExtendedStore: what the stores hash, file and tcp, and prefixes of them, can besides Store.
#ifndef SYNCLINE_EXTENDED_STORE_H_
#define SYNCLINE_EXTENDED_STORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "syncline/store.h"

namespace syncline {

// Threads, errors and keys are those of Store.
//
// A queue holds values in the order of their pushes, and each value goes to one pop. It exists
// while it has values: Check and Wait see its key then, Get and Keys never do. A value that was
// handed to a client whose connection breaks at that moment is lost.
//
//   SYNCLINE_ASSIGN_OR_RETURN(ExtendedStore* queues, ExtendedStore::Of(*store));
//   SYNCLINE_RETURN_IF_ERROR(queues->QueuePush("jobs", "job 1"));
//   SYNCLINE_ASSIGN_OR_RETURN(std::string job, queues->QueuePop("jobs", absl::Seconds(30)));
class ExtendedStore : public Store {
 public:
  // `store` itself, or UnsupportedError, which names it, if it is no ExtendedStore.
  static absl::StatusOr<ExtendedStore*> Of(Store& store);

  // Changes timeout() of this object. Calls that have begun keep theirs.
  virtual void set_timeout(absl::Duration timeout) = 0;

  // Another client of the same store, whose timeout begins as this one's. Of a prefix: the same
  // prefix of a clone.
  virtual absl::StatusOr<std::shared_ptr<Store>> Clone() = 0;

  // UnsupportedError where the store has no queues: the file store.
  virtual absl::Status QueuePush(absl::string_view key, absl::string_view value);

  // Waits until the queue has a value, and takes the oldest. Pops that wait are served in the order
  // of their coming.
  virtual absl::StatusOr<std::string> QueuePop(absl::string_view key, absl::Duration timeout);

  // The same without waiting: nothing if the queue is empty.
  virtual absl::StatusOr<std::optional<std::string>> QueueTryPop(absl::string_view key);

  // How many values the queue has.
  virtual absl::StatusOr<int64_t> QueueLength(absl::string_view key);
};

// A duration that threads read while another changes it.
class AtomicDuration {
 public:
  explicit AtomicDuration(absl::Duration duration) { Set(duration); }

  absl::Duration Get() const {
    const int64_t nanoseconds = nanoseconds_.load(std::memory_order_relaxed);
    return nanoseconds == INT64_MAX ? absl::InfiniteDuration() : absl::Nanoseconds(nanoseconds);
  }
  // What exceeds 292 years becomes infinite.
  void Set(absl::Duration duration) {
    nanoseconds_.store(absl::ToInt64Nanoseconds(duration), std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> nanoseconds_{0};
};

}  // namespace syncline

#endif  // SYNCLINE_EXTENDED_STORE_H_
