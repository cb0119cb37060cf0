// A store in the memory of one process, for callers that wait and callers that want to be called.
#ifndef SYNCLINE_STORE_COMMON_TABLE_H_
#define SYNCLINE_STORE_COMMON_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "store/common/contents.h"
#include "syncline/store.h"

namespace syncline::store {

// The operations of Store, none of which blocks; waits are parked. Errors do not name the store.
// Thread-safe.
class Table {
 public:
  // Gets the values of the keys as they were when the last of them was set. Runs on the thread
  // that set it, which holds no lock of the table. Must not block.
  using Ready = std::function<void(std::vector<std::string> values)>;
  using WaitId = uint64_t;

  absl::Status Set(absl::string_view key, absl::string_view value);
  absl::Status MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values);
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount);
  absl::StatusOr<Store::CompareSetResult> CompareSet(absl::string_view key,
                                                     absl::string_view expected,
                                                     absl::string_view desired);
  absl::Status Append(absl::string_view key, absl::string_view value);
  absl::StatusOr<bool> Delete(absl::string_view key);
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) const;
  std::vector<std::string> Keys(absl::string_view prefix) const;

  // What a wait is for. A queue that is not empty is present, and has no value.
  enum class Needs { kValues, kPresence };

  // The values of `keys` if all are set; nothing in them if only their presence is needed. Else
  // nothing, and `ready` will be called once they are, unless Unpark(*id) comes first; it is never
  // called from within this call.
  std::optional<std::vector<std::string>> GetOrPark(std::vector<std::string> keys, Needs needs,
                                                    Ready ready, WaitId* id);

  // See ExtendedStore. A value goes to the pop that has waited longest, if there is one.
  absl::Status QueuePush(absl::string_view key, absl::string_view value);
  std::optional<std::string> QueueTryPop(absl::string_view key);
  int64_t QueueLength(absl::string_view key) const;

  // As GetOrPark, for the oldest value of the queue: one value.
  std::optional<std::vector<std::string>> QueuePopOrPark(absl::string_view key, Ready ready,
                                                         WaitId* id);

  // Gives up the wait and returns the keys that are missing. Nothing if its `ready` has been, is
  // being or is about to be called.
  std::optional<std::vector<std::string>> Unpark(WaitId id);

  // How many are parked.
  int64_t NumWaits() const;

 private:
  class Woken;

  struct Wait {
    std::vector<std::string> keys;
    Needs needs;
    Ready ready;
    size_t next;  // Of keys. It is absent, and the wait is in waits_for_[keys[next]].
  };

  struct Pop {
    std::string key;
    Ready ready;
  };

  std::optional<std::string> TakeOldest(absl::string_view key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsThere(absl::string_view key, Needs needs) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  std::vector<std::string> ValuesFor(const Wait& wait) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Apply(Change change, Woken* woken) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t NextMissing(absl::Span<const std::string> keys, Needs needs, size_t from) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Wake(absl::string_view key, Woken* woken) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  Contents contents_ ABSL_GUARDED_BY(mutex_);
  // None of the queues is empty, and none has pops that wait.
  absl::flat_hash_map<std::string, std::deque<std::string>> queues_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<WaitId, Pop> pops_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::deque<WaitId>> pops_for_ ABSL_GUARDED_BY(mutex_);
  WaitId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<WaitId, Wait> waits_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::vector<WaitId>> waits_for_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline::store

#endif  // SYNCLINE_STORE_COMMON_TABLE_H_
