// What the ranks of a local group share: how they match calls, wait for each other, and fail.
#ifndef SYNCLINE_BACKENDS_LOCAL_LOCAL_GROUP_H_
#define SYNCLINE_BACKENDS_LOCAL_LOCAL_GROUP_H_

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
#include "backends/common/call_description.h"
#include "backends/local/reference_collectives.h"
#include "syncline/deadline.h"

namespace syncline::local {

// What one rank passes to the group: its call as messages quote it, and the call itself, whose
// tensors are the caller's.
struct RankArgs {
  explicit RankArgs(const CallContext& context) : call(context), collective(*context.collective) {}

  backends::CallDescription call;
  Collective collective;
};

// Shared by all ranks of one group, one thread (or several) each. In a collective every rank
// deposits its arguments; the last to arrive moves the data for all; then all return. The first
// error fails the group: whoever waits, and whoever comes later, gets it. Thread-safe.
class LocalGroup {
 public:
  explicit LocalGroup(int size)
      : size_(size), joined_(size), left_(size), pending_(NewPendingCollective()), last_(size) {}

  int size() const { return size_; }

  // Returns once all ranks have joined.
  absl::Status Join(int rank, const Deadline& deadline);

  // Takes part in the group's next collective, the call of `context`. A MismatchError, which fails
  // the group, if the ranks' calls differ; a TimeoutError that names the ranks that have not come.
  absl::Status RunCollective(int rank, const CallContext& context);

  // The same for a send or a recv, which the other rank's call matches, in order for each pair and
  // tag. Returns the rank that sent.
  absl::StatusOr<int> MatchMessage(int rank, const CallContext& context);

  // This rank takes part in nothing any more; its later calls fail with `cause`. Whoever waits for
  // it, or will, gets an error that says so. If it is in a call itself, that fails the group.
  void Leave(int rank, const absl::Status& cause);

 private:
  // One collective.
  struct PendingCollective {
    std::vector<std::optional<RankArgs>> args;  // By rank.
    int arrived = 0;
    bool done = false;
    absl::Status outcome;
  };

  // One side of a send and recv.
  struct PendingMessage {
    int rank = 0;
    const RankArgs* args = nullptr;
    bool taken = false;  // The other side has come and is moving the data.
    bool done = false;
    absl::Status outcome;
    int source = -1;  // The rank that sent.

    bool sends() const { return args->call.kind == OpKind::kSend; }
  };

  // (receiver, tag). Those who wait, in the order of their calls; none fits another.
  using Channel = std::pair<int, int>;

  static bool Matches(const PendingMessage& a, const PendingMessage& b);

  std::shared_ptr<PendingCollective> NewPendingCollective() const;
  absl::Status Execute(PendingCollective& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Await(PendingMessage& side, const Channel& channel, const Deadline& deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Deliver(PendingMessage& waiting, PendingMessage& mine)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Withdraw(const PendingMessage& side, const Channel& channel)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckUsable(int rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Not OK if `side` waits for nobody but ranks that have left.
  absl::Status CheckAwaited(const PendingMessage& side) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The errors when time is up: who is missing, and what they do instead.
  absl::Status AbsentError(int rank, const backends::CallDescription& call,
                           const PendingCollective& pending, const Deadline& deadline) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status UnmatchedError(const PendingMessage& side, const Deadline& deadline) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Report who is missing. Of the ranks that wait in a collective, the lowest also logs it.
  void WarnOfStall(int rank, const PendingCollective& pending, absl::Duration waited,
                   int64_t notice) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WarnOfStall(const PendingMessage& side, absl::Duration waited, int64_t notice) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordCall(int rank, const backends::CallDescription& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string LastActivity(int rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // If this thread, which is rank `rank` in `call`, or joins where that is null, was interrupted:
  // fails the group, and returns that.
  absl::Status FailIfInterrupted(const backends::CallDescription* call, int rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the first cause, which may be an earlier one.
  absl::Status Fail(const absl::Status& cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int size_;
  absl::Mutex mutex_;
  std::vector<bool> joined_ ABSL_GUARDED_BY(mutex_);
  int joined_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<absl::Status> left_ ABSL_GUARDED_BY(mutex_);  // Not OK: has left, because.
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);              // Not OK: failed, because.
  std::shared_ptr<PendingCollective> pending_ ABSL_GUARDED_BY(mutex_);
  std::map<Channel, std::deque<PendingMessage*>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::optional<backends::CallDescription>> last_
      ABSL_GUARDED_BY(mutex_);  // By rank; the name only.
};

}  // namespace syncline::local

#endif  // SYNCLINE_BACKENDS_LOCAL_LOCAL_GROUP_H_
