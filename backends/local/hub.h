// Where the ranks of a local group meet.
#ifndef SYNCLINE_BACKENDS_LOCAL_HUB_H_
#define SYNCLINE_BACKENDS_LOCAL_HUB_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "backends/common/call.h"
#include "backends/local/movement.h"
#include "core/base/deadline.h"

namespace syncline {

// Shared by all ranks of one group, one thread (or several) each. In a collective all ranks lay
// their parts on the table; the last to arrive moves the data for all; then all leave. The first
// error breaks the hub: whoever waits, and whoever comes later, gets it. Thread-safe.
class Hub {
 public:
  explicit Hub(int size)
      : size_(size), joined_(size), left_(size), meeting_(NewMeeting()), last_(size) {}

  int size() const { return size_; }

  // Returns once all ranks have joined.
  absl::Status Join(int rank, const Deadline& deadline);

  // Takes part in the group's next collective.
  absl::Status Meet(int rank, const Part& part, const Deadline& deadline);

  // Meets the other rank in a send and its recv, in order for each pair and tag. Returns the rank
  // that sent.
  absl::StatusOr<int> Exchange(int rank, const Part& part, const Deadline& deadline);

  // This rank takes part in nothing any more; its later calls fail with `cause`. Whoever waits for
  // it, or will, gets an error that says so. If it is in a call itself, that breaks the hub.
  void Leave(int rank, const absl::Status& cause);

 private:
  struct Meeting {
    std::vector<std::optional<Part>> parts;  // By rank.
    int arrived = 0;
    bool done = false;
    absl::Status outcome;
  };

  // One side of a send and recv.
  struct Side {
    int rank = 0;
    const Part* part = nullptr;
    bool taken = false;  // The other side has come and is moving the data.
    bool done = false;
    absl::Status outcome;
    int source = -1;  // The rank that sent.

    bool sends() const { return part->call.kind == OpKind::kSend; }
  };

  // (receiver, tag). Those who wait, in the order of their calls; none fits another.
  using Channel = std::pair<int, int>;

  static bool Fit(const Side& a, const Side& b);

  std::shared_ptr<Meeting> NewMeeting() const;
  absl::Status Conclude(Meeting& meeting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Await(Side& side, const Channel& channel, const Deadline& deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Take(Side& waiting, Side& mine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(const Side& side, const Channel& channel) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckUsable(int rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Not OK if `side` waits for nobody but ranks that have left.
  absl::Status CheckAwaited(const Side& side) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The errors when time is up: who is missing, and what they do instead.
  absl::Status Absent(const Call& call, const Meeting& meeting, const Deadline& deadline) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Unmatched(const Side& side, const Deadline& deadline) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Report who is missing. Of the ranks that wait in a collective, the lowest also logs it.
  void WarnOfStall(int rank, const Meeting& meeting, absl::Duration waited, int64_t notice) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WarnOfStall(const Side& side, absl::Duration waited, int64_t notice) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Note(int rank, const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Doing(int rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // If this thread, which is rank `rank` in `what`, was interrupted: breaks the hub, and returns
  // that.
  absl::Status BreakIfInterrupted(absl::string_view what, int rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the first cause, which may be an earlier one.
  absl::Status Break(const absl::Status& cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int size_;
  absl::Mutex mutex_;
  std::vector<bool> joined_ ABSL_GUARDED_BY(mutex_);
  int joined_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<absl::Status> left_ ABSL_GUARDED_BY(mutex_);  // Not OK: has left, because.
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);              // Not OK: broken, because.
  std::shared_ptr<Meeting> meeting_ ABSL_GUARDED_BY(mutex_);
  std::map<Channel, std::deque<Side*>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::optional<Call>> last_ ABSL_GUARDED_BY(mutex_);  // By rank; the name only.
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_LOCAL_HUB_H_
