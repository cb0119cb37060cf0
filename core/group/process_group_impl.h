// The inside of ProcessGroup: the way of a call from its check to its backend.
#ifndef SYNCLINE_CORE_GROUP_PROCESS_GROUP_IMPL_H_
#define SYNCLINE_CORE_GROUP_PROCESS_GROUP_IMPL_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/group/check_arguments.h"
#include "core/group/device_backend.h"
#include "core/group/operation_queue.h"
#include "core/group/plan.h"
#include "syncline/backend.h"
#include "syncline/collective.h"
#include "syncline/completion.h"
#include "syncline/deadline.h"
#include "syncline/device.h"
#include "syncline/enum_set.h"
#include "syncline/fork.h"
#include "syncline/process_group.h"
#include "syncline/stream.h"
#include "syncline/work.h"

namespace syncline {

// Owned by its ProcessGroup, whose public methods are thin over these; they promise what is said
// there. Thread-safe.
class ProcessGroup::Impl {
 public:
  // A backend of the group, and the devices whose tensors it serves.
  struct Served {
    std::string name;
    Capabilities capabilities;  // For tensors of the CPU.
    EnumSet<DeviceType> devices;
    std::shared_ptr<Backend> backend;
    std::shared_ptr<group::DeviceBackend> on_devices;  // For tensors of devices; may be null.
    // Whether on_devices is another backend, which does not share the order of `backend`'s calls.
    bool has_own_queues = false;
  };

  Impl(const Options& options, std::vector<Served> backends);
  ~Impl();  // Aborts what is in flight.

  // Connects the backends, one for each device that `options` name.
  static absl::StatusOr<std::vector<Served>> Connect(const Options& options);

  const Options& options() const { return options_; }
  // That of operations which are given none: at first the one of the options.
  absl::Duration timeout() const { return Deadline::FromFirstWait(timeout_ns_.load()).timeout(); }
  absl::Status SetTimeout(absl::Duration timeout);
  // Whether a blocking call on tensors of the CPU has ended, and keeps none, when it has returned.
  bool ends_with_calls() const { return ends_with_calls_; }
  // The group is used in a child that was forked since it was made. It must then leak.
  bool InChild() const { return fork_guard_.InChild(); }

  // A Timeout goes by reference: a copy loads whole words of one of which only bytes were just
  // stored, and would wait for those, in each function on the way.
  absl::StatusOr<int> Run(const Collective& collective, const Timeout& timeout);
  StartedWork Start(Collective collective, const Timeout& timeout);
  absl::Status Run(const absl::StatusOr<group::Plan>& plan, const Timeout& timeout);
  StartedWork Start(absl::StatusOr<group::Plan> plan, const Timeout& timeout);
  absl::Status MonitoredBarrier(const Timeout& timeout);

  // As those of Backend, of the backend for tensors of devices.
  bool CanSplit() const;
  absl::StatusOr<std::shared_ptr<ChildCommunicator>> Split(const SplitPlace& place,
                                                           const Deadline& deadline);

  absl::Status status() const;
  void Close(absl::Duration timeout);
  void Abort(absl::string_view reason);
  absl::Status CheckProcess() const;

 private:
  // What a call does in its turn: it hands itself to a backend, or waits for something itself.
  using Body = absl::FunctionRef<absl::StatusOr<Completion>(const CallContext& context)>;
  using OwnedBody = std::function<absl::StatusOr<Completion>(const CallContext& context)>;

  static constexpr size_t kFewQueues = 64;

  // The queues of one backend. Those of two backends, of which one serves the CPU and one a device,
  // do not wait for each other.
  struct Queues {
    explicit Queues(int size) : untagged(2 * (size + 1)) {}

    std::unique_ptr<group::OperationQueue> collectives = std::make_unique<group::OperationQueue>();
    // Those of p2p below whose tag is 0, so that most messages find theirs without a lock: null
    // until it is made, and then kept. In the order of UntaggedQueueOf.
    std::vector<std::atomic<group::OperationQueue*>> untagged;
    // One queue for each kind, peer and tag of p2p, made when it is needed. Of more than
    // `to_keep`, those that are idle and have a tag other than 0 are dropped. So as many are kept
    // as a few dozen, or as twice those in use. Sequence numbers count for each kind and peer,
    // whatever the tag, and stay.
    absl::Mutex mutex;
    std::map<std::tuple<OpKind, int, int64_t>, std::shared_ptr<group::OperationQueue>> p2p
        ABSL_GUARDED_BY(mutex);
    size_t to_keep ABSL_GUARDED_BY(mutex) = kFewQueues;
    std::map<std::pair<OpKind, int>, std::shared_ptr<group::OperationQueue::SequenceCounter>>
        p2p_counters ABSL_GUARDED_BY(mutex);
  };

  // Run, or start, what `body` does under the name of `collective`. RunOnHost is for tensors of the
  // CPU; body(context) waits for the outcome and returns it. A template, as almost every blocking
  // call takes this way: for a small one, calls by reference are much of its cost.
  template <typename RunBody>
  ABSL_ATTRIBUTE_ALWAYS_INLINE inline absl::StatusOr<int> RunOnHost(const Collective& collective,
                                                                    const Timeout& timeout,
                                                                    const RunBody& body);
  // The rest of RunOnHost, where other operations of the queue come first.
  template <typename RunBody>
  ABSL_ATTRIBUTE_NOINLINE absl::StatusOr<int> RunInTurn(const Collective& collective,
                                                        CallContext& context,
                                                        group::OperationQueue& queue,
                                                        const RunBody& body);
  absl::StatusOr<int> RunOnDevice(const Collective& collective, const Timeout& timeout, Body body);
  StartedWork StartInTurn(const Collective& collective, const Timeout& timeout, OwnedBody body);

  // OK if the arguments are valid and the group can still be used. Of most calls a short look,
  // which makes no Status, shows that.
  absl::Status CheckUsable(const Collective& collective, const Timeout& timeout) const {
    if (ABSL_PREDICT_TRUE(IsPlainlyUsable(BackendOf(collective), collective, timeout))) {
      return absl::OkStatus();
    }
    return CheckUsableInFull(collective, timeout);
  }
  bool IsPlainlyUsable(const Served& served, const Collective& collective,
                       const Timeout& timeout) const {
    return !fork_guard_.InChild() && (!timeout.has_value() || *timeout > absl::ZeroDuration()) &&
           is_usable_.load(std::memory_order_acquire) &&
           group::IsPlain(collective, served.capabilities, options_.rank, options_.size);
  }
  absl::Status CheckUsableInFull(const Collective& collective, const Timeout& timeout) const;
  CallContext ContextOf(uint64_t sequence, const Deadline& deadline) const;
  // What body(context) returns, an absl::StatusOr; of an error or exception, what Failed returns.
  template <typename RunBody>
  ABSL_ATTRIBUTE_ALWAYS_INLINE inline auto Execute(const Collective& collective,
                                                   const CallContext& context, const RunBody& body)
      -> decltype(body(context));
  // The same for a call that is enqueued on streams, in the turn of this thread.
  StartedWork StartOnStreams(const Collective& collective, const Timeout& timeout,
                             const CallerStream& caller, Body body);
  // The current streams of the tensors of `collective`, with events of what is enqueued there;
  // nothing where the backend needs none.
  absl::StatusOr<std::optional<CallerStream>> RecordCaller(const Collective& collective) const;
  // Lets a call on streams go on, whose tensors are kept until it has ended.
  void EndLater(const Completion& completion, const Collective& collective, uint64_t sequence);
  // Finishes `work` when the call that is in flight has ended.
  void FinishLater(const Completion& completion, const Collective& collective, uint64_t sequence,
                   const std::shared_ptr<Work>& work);
  // "rank 0 of group 'default': all_reduce"
  std::string Speaker(absl::string_view operation = {}) const;
  // The error of a call, in the words of the group. Fails the group unless the error is the
  // caller's alone.
  absl::Status Failed(const Collective& collective, uint64_t sequence, const absl::Status& error);
  // The error of a call that its queue has not begun, or has ended as the thread was interrupted.
  absl::Status NotRun(const Collective& collective, const absl::Status& error);
  absl::Status Concluded(absl::Status status);
  // The backend for a call, or one that refuses it.
  const Served& BackendOf(const Collective& collective) const {
    return *backend_of_[static_cast<size_t>(collective.device())];
  }
  // The queue of a call; in `keep` what keeps it while the call uses it, if that is needed.
  group::OperationQueue& QueueOf(const Collective& collective,
                                 std::shared_ptr<group::OperationQueue>& keep) {
    return QueueIn(*queues_of_[static_cast<size_t>(collective.device())], collective, keep);
  }
  group::OperationQueue& QueueIn(Queues& queues, const Collective& collective,
                                 std::shared_ptr<group::OperationQueue>& keep) {
    if (ABSL_PREDICT_TRUE(!IsP2p(collective.kind))) return *queues.collectives;
    std::atomic<group::OperationQueue*>* const untagged = UntaggedQueueOf(queues, collective);
    if (ABSL_PREDICT_TRUE(untagged != nullptr)) {
      // Pairs with the release store in QueueOfMessage.
      group::OperationQueue* const known = untagged->load(std::memory_order_acquire);
      if (ABSL_PREDICT_TRUE(known != nullptr)) return *known;
    }
    return QueueOfMessage(queues, collective, keep);
  }
  group::OperationQueue& QueueOfMessage(Queues& queues, const Collective& collective,
                                        std::shared_ptr<group::OperationQueue>& keep);
  // Where Queues::untagged has the queue of a message, or null if its tag is not 0.
  std::atomic<group::OperationQueue*>* UntaggedQueueOf(Queues& queues,
                                                       const Collective& collective) const {
    if (collective.tag != 0) return nullptr;
    const int of_kind = collective.kind == OpKind::kRecv ? options_.size + 1 : 0;
    return &queues.untagged[of_kind + 1 + collective.peer];  // A peer is kAnySource, -1, or a rank.
  }
  Queues* AddQueues();
  static void DropIdleQueues(Queues& queues,
                             std::vector<std::shared_ptr<group::OperationQueue>>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(queues.mutex);
  // Fails the group: later calls, and those in flight here and on the peers.
  void Fail(const absl::Status& cause);
  // Makes later calls fail with `cause`, unless they do already. Returns whether they did not.
  bool Poison(const absl::Status& cause);
  void AwaitOperations(const Deadline& deadline);
  void AbortBackends(const absl::Status& cause);
  // The same, of a group whose operations have ended.
  void LeaveBackends(const absl::Status& cause, const Deadline& deadline);
  void SetAbortCause(const absl::Status& cause);
  // OK until the backends are aborted. While a group closes, cause_ is set and this is not yet.
  absl::Status abort_cause() const;

  const Options options_;
  // Calls read it without a lock. As Deadline has it.
  std::atomic<int64_t> timeout_ns_{absl::ToInt64Nanoseconds(options_.timeout)};
  const ForkGuard fork_guard_;
  const std::vector<Served> backends_;  // At least one.
  std::vector<std::unique_ptr<Queues>> queues_;
  static constexpr size_t kCpu = static_cast<size_t>(DeviceType::kCpu);
  // By DeviceType: what serves its tensors, of these two.
  std::array<const Served*, 2> backend_of_ = {};
  std::array<Queues*, 2> queues_of_ = {};
  bool ends_with_calls_ = false;
  mutable absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);  // OK while the group is usable;
  std::atomic<bool> is_usable_{true};           // so each call asks this first.
  absl::Status abort_cause_ ABSL_GUARDED_BY(mutex_);
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // Calls whose completion is pending.
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_GROUP_PROCESS_GROUP_IMPL_H_
