// The implementation of Reducer: the state behind its methods. See reducer.h for what they do.
#ifndef SYNCLINE_DDP_REDUCER_IMPL_H_
#define SYNCLINE_DDP_REDUCER_IMPL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "ddp/bucket_layout.h"
#include "ddp/device_lane.h"
#include "ddp/gradient_report.h"
#include "ddp/host_exchange.h"
#include "ddp/options_fingerprint.h"
#include "ddp/sparse_gather.h"
#include "syncline/comm_hook.h"
#include "syncline/process_group.h"
#include "syncline/reducer.h"
#include "syncline/reducer_stats.h"
#include "syncline/tensor.h"
#include "syncline/work.h"

namespace syncline {

// Monotonic.
int64_t Nanos();

// Every communicating step of every rank issues the same operations: the buckets in order, then one
// small all-reduce, the used-parameter all-reduce, by which each rank learns for which parameters
// any rank has a gradient. It starts after the last bucket without waiting for Finish, unless
// gradients can still come that must not. If it reports a fault, all ranks exchange their faults,
// and the step ends in an error. In a group that serves the tensors of devices alone there is no
// such all-reduce unless unused parameters are looked for: a rank with a fault ends the group.
//
// On a device, gradients that come are noted with an event of the stream on which they are ready;
// when a bucket is handed over, the lane's stream waits for these events, moves the gradients into
// the bucket in one launch, and the all-reduce is enqueued behind it. No thread waits for the
// device, which may be a step behind the host: what is done on the host here must touch no element.
//
// Threads: mutex_ is held neither while a bucket is handed to the group, nor while gradients are
// copied, nor in a wait. The thread that hands buckets over has set step_.is_starting, and the
// others leave that work to it; threads that copy are counted in step_.copying. Once Finish finds
// neither, and sets is_finishing, the step belongs to its thread alone.
class Reducer::Impl {
 public:
  Impl(std::shared_ptr<ProcessGroup> group, const std::vector<Tensor>& parameters, Options options);
  ~Impl();

  // Collective. Plans the buckets. Before anything else.
  absl::Status Connect();

  absl::Status BeginStep(const Step& step);
  absl::StatusOr<Tensor> gradient(int64_t index) const;
  absl::Status MarkReady(int64_t index);
  absl::Status CopyReady(int64_t index, const Tensor& value);
  absl::Status MarkReadySparse(int64_t index, const Rows& rows);
  absl::StatusOr<bool> AwaitBucket(int64_t b);
  absl::Status Finish();
  absl::StatusOr<bool> is_used(int64_t index) const;
  absl::StatusOr<Rows> rows(int64_t index) const;
  absl::StatusOr<int64_t> CountActive(Activity mine);
  absl::Status ShadowStep(int64_t divisor);
  absl::Status SetHook(std::shared_ptr<CommHook> hook);
  absl::Status ReplaceGroup(std::shared_ptr<ProcessGroup> group);
  std::vector<std::vector<int64_t>> buckets() const;
  int64_t generation() const;
  ReducerStats stats();

 private:
  enum class State : uint8_t { kAwaited, kCopying, kReady, kUnused };

  // When the buckets of a step, and behind them the sparse parameters, were ready and reduced.
  // Shared with the callbacks of works, which may come after the step.
  struct Times {
    explicit Times(size_t count) : ready(count), start(count), end(count) {}
    // Called by the callback and by the thread that waits; the first call counts.
    void Ended(size_t b) {
      int64_t unknown = 0;
      end[b].compare_exchange_strong(unknown, Nanos());
    }
    const int64_t begin = Nanos();
    int64_t backward_end = 0;
    bool is_counted = false;  // In the totals over all steps.
    std::vector<int64_t> ready, start;
    std::vector<std::atomic<int64_t>> end;
  };

  // Where the gradients of a call are ready: on this thread's current stream. Empty on the CPU.
  struct Ready {
    Stream stream;
    std::shared_ptr<device::Event> event;
  };

  struct Running {
    bool under_way = false;
    Sync sync = Sync::kAllRanks;
    int64_t divisor = 1;
    std::vector<State> states;     // By parameter.
    std::vector<int64_t> surplus;  // Marked, though said to be unused.
    std::vector<int64_t> arrival;  // Dense parameters in the order of their marks.
    std::vector<int64_t> awaited;  // Gradients not ready, by bucket.
    int64_t all_awaited = 0;       // Sparse ones included.
    bool has_unused = false;       // Parameters that were said, or are recorded, to be.
    int64_t copying = 0;           // Threads.
    bool is_starting = false;
    bool is_finishing = false;
    size_t next = 0;                           // The first bucket that has not been started.
    std::vector<std::shared_ptr<Work>> works;  // By bucket.
    std::shared_ptr<Work> used_work;           // The used-parameter all-reduce.
    std::vector<int64_t> bytes, counts;        // By bucket, for statistics.
    Tensor used_values;  // Its int32s: 0 unused, 1 used, 2 a fault. By parameter, or just one.
    std::vector<ddp::Fault> faults;            // By parameter; known to Finish.
    absl::Status error;                        // Of the start of a bucket.
    std::vector<ddp::BucketWork> device_work;  // By bucket; none on the CPU.
    Ready here;                                // Of the call that is being made.
    std::shared_ptr<Times> times;
    int64_t own_time = 0, copy_time = 0;
  };

  // ---- reducer_setup.cc ----
  absl::Status CheckOptions() const;
  ddp::OptionsFingerprint Fingerprint() const;
  std::vector<int64_t> DefaultOrder() const;
  absl::Status PlanBuckets();
  absl::Status CheckBetweenSteps(absl::string_view call) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status DropStep();
  absl::Status AdoptState(ProcessGroup& group);
  std::string HookName() const;
  // OK for none. After an error the hook may have been acquired: whoever drops it releases it.
  absl::Status AcquireHook(CommHook* hook) const;
  absl::Status MakeLane();
  const Device& device() const { return parameters_.front().device(); }
  bool is_on_device() const { return device().type != DeviceType::kCpu; }
  ddp::HostExchange ExchangeOf(ProcessGroup& group) const { return {group, lane_.get()}; }

  // ---- reducer_step.cc ----
  absl::Status CheckIndex(int64_t index) const;
  absl::Status CheckKind(int64_t index, bool sparse) const;
  std::string NameOf(int64_t index) const;
  bool FindsUnused() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckStep(const Step& step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Begin(const Step& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetUnused(int64_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins a step if there is none. OK if this gradient may be written now.
  absl::Status CheckMayMark(int64_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MarkedTwiceError(int64_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notes in step_.here where this thread's gradients are ready. With the mutex, so that of two
  // events of one stream the one that is noted last is the later one. UnsupportedError if nothing
  // has been changed; any other error is a device's, and fails the step, which begins if need be.
  absl::Status RecordHere() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Clear(const Tensor& tensor, size_t b) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CopyOnDevice(int64_t index, const Tensor& value);
  absl::Status SetReady(int64_t index, int64_t begun) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasGradient(int64_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // These release the mutex in between.
  absl::Status StartReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartBucket(size_t b) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Tensor UsedValues() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartUsedAllReduce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<Work>> Start(size_t b, ddp::BucketWork work, int64_t* hook_time);
  absl::StatusOr<std::shared_ptr<Work>> StartAverage(size_t b, int64_t* hook_time);
  absl::Status HookFailed(size_t b, const absl::Status& error);
  // On a device a bucket may fail after Finish has returned: the group learns of it then.
  void AbortIfHookFails(size_t b, Work& work);

  // ---- reducer_finish.cc ----
  absl::Status AwaitOthers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CompleteStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // In a group of devices alone: the faults of this rank, unless all ranks exchange them.
  absl::Status CheckOwnFaults() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The rest of Finish of a step that does not communicate. An error ends the group.
  absl::Status FinishAlone();
  absl::Status ExchangeUsed(int64_t* waited);
  // The parts of Finish that communicate. Each adds the time that it waited to `waited`.
  absl::Status FinishTogether(int64_t* waited);
  absl::Status AwaitWorks(int64_t* waited);
  absl::Status AwaitWork(size_t b);
  // The same for the Work of a hook, whose host time is bounded.
  absl::Status AwaitHook(Work& work) const;
  void EndInterrupted(const absl::Status& interruption);
  absl::Status ReadUsedAllReduce(int64_t* waited);
  absl::Status GatherSparse(int64_t* waited);
  absl::Status Rebuild(int64_t* waited);
  absl::Status ShareOrder(int64_t* waited);
  // Buckets may be in flight: those that it replaces stay theirs.
  absl::Status AdoptOrder(const std::vector<int64_t>& order);
  // Whether the sum over the ranks comes as it is, to be divided by Finish: that of integers.
  bool DividesAfterwards(size_t b) const;
  absl::Status DivideIntegers();
  void End(int64_t begun, int64_t waited, const absl::Status& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The last step's times, as far as they are known.
  void FillTimes(Times& times) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<Tensor> parameters_;  // Types and shapes; no elements.
  const Options options_;                 // Without the hook.
  std::vector<int64_t> sparse_;           // In the order of indices.
  std::vector<int64_t> sparse_place_;     // By parameter: where in sparse_; or -1.

  mutable absl::Mutex mutex_;
  // These change between steps, or at the end of Finish, and may be read in a step without it.
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<CommHook> hook_;
  std::unique_ptr<ddp::DeviceLane> lane_;  // Null on the CPU.
  bool serves_host_ = true;                // The group has a backend for tensors of the host.
  // Gone once the reducer is: callbacks of works may come later.
  std::shared_ptr<const bool> lives_ = std::make_shared<const bool>(true);
  // A failed step's operations may still write to the buckets of a device.
  bool is_in_doubt_ = false;
  ddp::BucketLayout layout_;
  int64_t generation_ = 0;
  bool rebuilt_ = false;
  bool recorded_ = false;                 // used_ holds for all steps.
  int64_t steps_ = 0;                     // That communicated and succeeded.
  std::vector<uint8_t> used_;             // By parameter, of the last step; empty before the first.
  std::vector<Rows> gathered_;            // By sparse parameter, of the last step.
  std::vector<ddp::RowBuffer> own_rows_;  // By sparse parameter.
  std::vector<uint8_t> accumulated_ ABSL_GUARDED_BY(mutex_);  // Has a gradient of steps with kNone.
  Running step_;
  ReducerStats stats_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Times> last_times_ ABSL_GUARDED_BY(mutex_);  // Of stats_.
  double all_communication_ = 0, all_hidden_ = 0;              // Over all steps.
};

}  // namespace syncline

#endif  // SYNCLINE_DDP_REDUCER_IMPL_H_
