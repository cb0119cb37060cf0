// The inside of ProcessGroup: the way of a call from its check to its backend.
#ifndef SYNCLINE_CORE_GROUP_PROCESS_GROUP_IMPL_H_
#define SYNCLINE_CORE_GROUP_PROCESS_GROUP_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/group/operation_queue.h"
#include "core/group/plan.h"
#include "syncline/backend.h"
#include "syncline/collective.h"
#include "syncline/completion.h"
#include "syncline/deadline.h"
#include "syncline/fork.h"
#include "syncline/process_group.h"
#include "syncline/work.h"

namespace syncline {

// Owned by its ProcessGroup, whose public methods are thin over these; they promise what is said
// there. Thread-safe.
class ProcessGroup::Impl {
 public:
  // Serves the tensors of some devices.
  struct Served {
    std::string name;
    Capabilities capabilities;
    std::shared_ptr<Backend> backend;
  };

  Impl(const Options& options, std::vector<Served> backends)
      : options_(options), backends_(std::move(backends)) {}
  ~Impl();  // Aborts what is in flight.

  // Connects the backends, one for each device that `options` name.
  static absl::StatusOr<std::vector<Served>> Connect(const Options& options);

  const Options& options() const { return options_; }
  // The group is used in a child that was forked since it was made. It must then leak.
  bool InChild() const { return fork_guard_.InChild(); }

  // Inline, as every blocking call takes this way.
  absl::StatusOr<int> Run(const Collective& collective, Timeout timeout) {
    return RunInTurn(collective, timeout, [&](const CallContext& context) {
      return BackendOf(collective).backend->Run(absl::MakeConstSpan(&collective, 1), context);
    });
  }
  StartedWork Start(Collective collective, Timeout timeout);
  absl::Status Run(const absl::StatusOr<group::Plan>& plan, Timeout timeout);
  StartedWork Start(absl::StatusOr<group::Plan> plan, Timeout timeout);
  absl::Status MonitoredBarrier(Timeout timeout);

  absl::Status status() const;
  void Close(absl::Duration timeout);
  void Abort(absl::string_view reason);
  absl::Status CheckProcess() const;

 private:
  // What a call does in its turn: it hands itself to a backend, or waits for something itself.
  using Body = absl::FunctionRef<absl::StatusOr<Completion>(const CallContext& context)>;
  using OwnedBody = std::function<absl::StatusOr<Completion>(const CallContext& context)>;

  static constexpr size_t kFewQueues = 64;

  // Runs, or starts, what `body` does under the name of `collective`.
  absl::StatusOr<int> RunInTurn(const Collective& collective, Timeout timeout, Body body);
  StartedWork StartInTurn(const Collective& collective, Timeout timeout, OwnedBody body);

  // OK if the arguments are valid and the group can still be used.
  absl::Status CheckUsable(const Collective& collective, Timeout timeout) const;
  CallContext ContextOf(uint64_t sequence, const Deadline& deadline) const;
  absl::StatusOr<Completion> Execute(const Collective& collective, const CallContext& context,
                                     Body body);
  // Finishes `work` when the call that is in flight has ended.
  void FinishLater(const Completion& completion, const Collective& collective, uint64_t sequence,
                   const std::shared_ptr<Work>& work);
  // "rank 0 of group 'default': all_reduce"
  std::string Speaker(absl::string_view operation = {}) const;
  // The error of a call, in the words of the group. Fails the group unless the error is the
  // caller's alone.
  absl::Status Failed(const Collective& collective, uint64_t sequence, const absl::Status& error);
  absl::Status Concluded(absl::Status status);
  const Served& BackendOf(const Collective& collective) const;
  std::shared_ptr<group::OperationQueue> QueueOf(const Collective& collective);
  void DropIdleQueues(std::vector<std::shared_ptr<group::OperationQueue>>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(queues_mutex_);
  // Fails the group: later calls, and those in flight here and on the peers.
  void Fail(const absl::Status& cause);
  // Makes later calls fail with `cause`, unless they do already. Returns whether they did not.
  bool Poison(const absl::Status& cause);
  void AwaitOperations(const Deadline& deadline);
  void AbortBackends(const absl::Status& cause);
  // OK until the backends are aborted. While a group closes, cause_ is set and this is not yet.
  absl::Status abort_cause() const;

  const Options options_;
  const ForkGuard fork_guard_;
  std::vector<Served> backends_;  // At least one.
  mutable absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);  // OK while the group is usable;
  std::atomic<bool> is_usable_{true};           // so each call asks this first.
  absl::Status abort_cause_ ABSL_GUARDED_BY(mutex_);
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // Calls whose completion is pending.
  std::unique_ptr<group::OperationQueue> collectives_ = std::make_unique<group::OperationQueue>();
  absl::Mutex queues_mutex_;
  // One queue for each kind, peer and tag of p2p, made when it is needed. Of more than
  // queues_to_keep_, those that are idle are dropped. So as many are kept as a few dozen, or as
  // twice those in use. Sequence numbers count for each kind and peer, whatever the tag, and stay.
  std::map<std::tuple<OpKind, int, int64_t>, std::shared_ptr<group::OperationQueue>> p2p_
      ABSL_GUARDED_BY(queues_mutex_);
  size_t queues_to_keep_ ABSL_GUARDED_BY(queues_mutex_) = kFewQueues;
  std::map<std::pair<OpKind, int>, std::shared_ptr<group::OperationQueue::SequenceCounter>>
      p2p_counters_ ABSL_GUARDED_BY(queues_mutex_);
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_GROUP_PROCESS_GROUP_IMPL_H_
