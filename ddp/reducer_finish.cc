// The end of a step: waiting, the used-parameter all-reduce, sparse rows, the buckets' new order.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/tensor/copy_bytes.h"
#include "core/tensor/reduce_kernels.h"
#include "ddp/bucketing.h"
#include "ddp/reducer_impl.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline {
namespace {

// A hook may make several operations for a bucket, each of which has the group's timeout.
constexpr int kOperationsOfHook = 4;

// Adds the time of its life to a total.
class Stopwatch {
 public:
  explicit Stopwatch(int64_t* total) : total_(total) {}
  ~Stopwatch() { *total_ += Nanos() - begun_; }

 private:
  int64_t* const total_;
  const int64_t begun_ = Nanos();
};

absl::string_view AdviceFor(Reducer::Unused unused) {
  return unused == Reducer::Unused::kRefused
             ? "give every parameter a gradient in every step (zeros will do), or let the reducer "
               "find those that have none (find_unused_parameters)"
             : "a static graph has gradients for the same parameters in all steps, and those that "
               "a step names as unused get none";
}

}  // namespace

absl::StatusOr<bool> Reducer::Impl::AwaitBucket(int64_t b) {
  std::shared_ptr<Work> work;
  std::shared_ptr<Times> times;
  {
    absl::MutexLock lock(&mutex_);
    if (b < 0 || b >= static_cast<int64_t>(layout_.buckets.size())) {
      return ArgumentError(
          absl::StrCat("there is no bucket ", b, ": there are ", layout_.buckets.size()));
    }
    if (!step_.under_way || step_.works[b] == nullptr || DividesAfterwards(b)) return false;
    work = step_.works[b];
    times = step_.times;
    if (times->backward_end == 0) times->backward_end = Nanos();
  }
  // On a device the current stream waits.
  if (lane_ != nullptr) return (hook_ == nullptr ? work->Wait() : AwaitHook(*work)).ok();
  const int operations = hook_ == nullptr ? 1 : kOperationsOfHook;
  const absl::Status averaged = work->Wait(operations * group_->timeout());
  times->Ended(static_cast<size_t>(b));
  return averaged.ok();
}

absl::Status Reducer::Impl::Finish() {
  const int64_t begun = Nanos();
  int64_t waited = 0;
  bool is_local;
  {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(AwaitOthers());
    if (step_.is_finishing) return ArgumentError("finish is under way in another thread");
    const absl::Status here = RecordHere();  // A device's error is in step_.error.
    if (KindOf(here) == ErrorKind::kUnsupported) return here;
    if (!step_.under_way) Begin({});
    if (step_.times->backward_end == 0) step_.times->backward_end = Nanos();
    step_.is_finishing = true;
    is_local = step_.sync == Sync::kNone;
    if (!is_local) {
      CompleteStep();
      step_.error.Update(CheckOwnFaults());
      (void)StartReady();  // It is in step_.error.
    }
  }
  if (is_local) return FinishAlone();
  absl::Status outcome = FinishTogether(&waited);
  if (lane_ != nullptr) {
    // What the lane does in the next step comes behind all of this one.
    const absl::Status follows = lane_->WaitForCurrent();
    outcome.Update(follows);
    is_in_doubt_ = !outcome.ok();
  }
  std::vector<ddp::BucketWork> dropped;  // Of a step that has failed: values that go unlocked.
  absl::MutexLock lock(&mutex_);
  dropped.swap(step_.device_work);
  End(begun, waited, outcome);
  return outcome;
}

absl::Status Reducer::Impl::FinishAlone() {
  std::vector<ddp::BucketWork> works;  // Whose values go without the mutex.
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    status = step_.error;
    works.swap(step_.device_work);
  }
  const auto enqueue = [&]() -> absl::Status {
    for (size_t b = 0; b < works.size(); ++b) {
      SYNCLINE_RETURN_IF_ERROR(lane_->Enqueue(std::move(works[b]), layout_.flats[b]));
    }
    SYNCLINE_RETURN_IF_ERROR(lane_->CurrentWaits());
    return lane_->WaitForCurrent();
  };
  if (lane_ != nullptr && status.ok()) status = enqueue();
  // The gradients so far are lost on this rank alone: the others must not wait for them.
  if (!status.ok() && group_->status().ok()) {
    group_->Abort(absl::StrCat("rank ", group_->rank(), ": ", status.message()));
  }
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; status.ok() && i < step_.states.size(); ++i) {
    if (step_.states[i] == State::kReady) accumulated_[i] = true;
  }
  is_in_doubt_ = is_in_doubt_ || (lane_ != nullptr && !status.ok());
  step_.under_way = false;
  step_.is_finishing = false;
  return status;
}

absl::Status Reducer::Impl::CheckOwnFaults() const {
  if (serves_host_ || FindsUnused()) return absl::OkStatus();
  const auto is_fault = [](ddp::Fault fault) { return fault != ddp::Fault::kNone; };
  if (std::none_of(step_.faults.begin(), step_.faults.end(), is_fault)) return absl::OkStatus();
  return ddp::FaultsOf(group_->rank(), step_.faults, options_.names, AdviceFor(options_.unused));
}

absl::Status Reducer::Impl::AwaitOthers() {
  const auto quiet = [this] { return step_.copying == 0 && !step_.is_starting; };
  const absl::Duration limit = group_->timeout();
  if (Deadline(limit).Await(mutex_, absl::Condition(&quiet))) return absl::OkStatus();
  return TimeoutError(
      absl::StrCat("rank ", group_->rank(), ": after ", absl::FormatDuration(limit), " ",
                   step_.is_starting ? absl::StrCat("the communication hook '", HookName(),
                                                    "' has not returned from its start of a bucket")
                                     : std::string("a gradient is still being copied"),
                   " in another thread: finish a step once its gradients are marked"));
}

void Reducer::Impl::CompleteStep() {
  step_.faults.assign(parameters_.size(), ddp::Fault::kNone);
  const bool finds_unused = FindsUnused();
  for (size_t i = 0; i < step_.states.size(); ++i) {
    if (HasGradient(i)) continue;
    if (step_.states[i] == State::kAwaited && sparse_place_[i] < 0) {
      Clear(layout_.gradients[i], layout_.bucket_of[i]);
    }
    if (finds_unused) continue;
    if (options_.unused == Unused::kRefused || used_[i]) step_.faults[i] = ddp::Fault::kMissing;
  }
  for (int64_t i : step_.surplus) step_.faults[i] = ddp::Fault::kSurplus;
  for (size_t b = 0; b < step_.awaited.size(); ++b) {
    if (step_.awaited[b] > 0) step_.times->ready[b] = Nanos();
    step_.awaited[b] = 0;
  }
}

absl::Status Reducer::Impl::FinishTogether(int64_t* waited) {
  absl::Status status = AwaitWorks(waited);
  if (lane_ == nullptr) SYNCLINE_RETURN_IF_ERROR(status);
  if (status.ok()) status = ExchangeUsed(waited);
  if (status.ok()) {
    SYNCLINE_RETURN_IF_ERROR(ReadUsedAllReduce(waited));
    status = DivideIntegers();
  }
  if (status.ok()) status = GatherSparse(waited);
  if (status.ok()) status = Rebuild(waited);
  // What fails here, and has left the group whole, fails on this rank alone: the others must not
  // wait for it, nor go on with other buckets.
  if (!status.ok() && group_->status().ok()) {
    group_->Abort(absl::StrCat("rank ", group_->rank(), ": ", status.message()));
  }
  return status;
}

absl::Status Reducer::Impl::AwaitWorks(int64_t* waited) {
  const Stopwatch stopwatch(waited);
  absl::Status first;
  for (size_t b = 0; b < step_.works.size(); ++b) {
    if (step_.works[b] == nullptr) continue;
    first.Update(AwaitWork(b));
    if (lane_ == nullptr) step_.times->Ended(b);  // A device's works call back.
  }
  first.Update(step_.error);
  if (step_.used_work != nullptr) first.Update(step_.used_work->Wait());  // It has a timeout.
  if (!Interruption().ok()) EndInterrupted(Interruption());
  return first;
}

// Waits until the all-reduces of an interrupted step have ended, so that they do not write to the
// gradients of the next one. A hook's operations may wait for other ranks for longer: its Reset
// deals with them.
void Reducer::Impl::EndInterrupted(const absl::Status& interruption) {
  const Uninterruptible cleanup;
  group_->Abort(absl::StrCat("rank ", group_->rank(), " was ", interruption.message()));
  if (hook_ != nullptr) return;
  for (const std::shared_ptr<Work>& work : step_.works) {
    if (work != nullptr) work->Wait().IgnoreError();
  }
  if (step_.used_work != nullptr) step_.used_work->Wait().IgnoreError();
}

absl::Status Reducer::Impl::AwaitWork(size_t b) {
  // On a device the current stream waits, also for a hook.
  if (hook_ == nullptr) return step_.works[b]->Wait();
  const absl::Status status = AwaitHook(*step_.works[b]);
  return status.ok() ? status : HookFailed(b, status);
}

absl::Status Reducer::Impl::AwaitHook(Work& work) const {
  const absl::Duration limit = kOperationsOfHook * group_->timeout();
  if (lane_ == nullptr) return work.Wait(limit);
  // Until the hook has enqueued its work, the host waits. A scope of our own ends each wait soon,
  // so that this one can look at the clock and at the caller's scope.
  const Deadline deadline(limit);
  while (true) {
    {
      const auto end_slice = [] { return InterruptedError("a slice of the wait is over"); };
      const InterruptScope slice(end_slice);
      const absl::Status status = work.Wait();
      if (slice.status().ok()) return status;
    }
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
    if (deadline.Remaining() > absl::ZeroDuration()) continue;
    return TimeoutError(absl::StrCat(work.description(), " has not been enqueued on ",
                                     ToString(device()), " within ", absl::FormatDuration(limit),
                                     ", ", kOperationsOfHook, " times the group's timeout"));
  }
}

// In a group of devices alone.
absl::Status Reducer::Impl::ExchangeUsed(int64_t* waited) {
  if (serves_host_) return absl::OkStatus();
  bool exchanges;
  {
    absl::MutexLock lock(&mutex_);
    step_.used_values = UsedValues();
    exchanges = FindsUnused();
  }
  const Stopwatch stopwatch(waited);
  if (!exchanges) return absl::OkStatus();
  return Annotate(ExchangeOf(*group_).AllReduce(step_.used_values, ReduceOp::kMax),
                  "which parameters are used");
}

absl::Status Reducer::Impl::ReadUsedAllReduce(int64_t* waited) {
  const int32_t* values = step_.used_values.data_as<int32_t>();
  const int32_t* end = values + step_.used_values.numel();
  if (std::find(values, end, 2) != end) {
    const Stopwatch stopwatch(waited);
    return ddp::ReportFaults(ExchangeOf(*group_), step_.faults, options_.names,
                             AdviceFor(options_.unused));
  }
  absl::MutexLock lock(&mutex_);
  if (FindsUnused()) {
    used_.assign(values, end);
    recorded_ = options_.unused == Unused::kRecorded;
  } else if (options_.unused == Unused::kRefused) {
    used_.assign(parameters_.size(), 1);
  }
  return absl::OkStatus();
}

bool Reducer::Impl::DividesAfterwards(size_t b) const {
  return hook_ == nullptr && step_.divisor != group_->size() && IsInteger(layout_.flats[b].dtype());
}

absl::Status Reducer::Impl::DivideIntegers() {
  for (size_t b = 0; b < layout_.flats.size(); ++b) {
    if (!DividesAfterwards(b)) continue;
    const Tensor& flat = layout_.flats[b];
    const int divisor = static_cast<int>(step_.divisor);
    if (lane_ != nullptr) {
      SYNCLINE_RETURN_IF_ERROR(lane_->Divide(flat, divisor, CurrentStream(device())));
    } else {
      tensor::Divide(flat.dtype(), flat.data(), divisor, flat.numel());
    }
  }
  return absl::OkStatus();
}

absl::Status Reducer::Impl::GatherSparse(int64_t* waited) {
  const Stopwatch stopwatch(waited);
  std::vector<Rows> all(sparse_.size());
  for (size_t s = 0; s < sparse_.size(); ++s) {
    const size_t b = layout_.buckets.size() + s;
    if (step_.times->ready[b] == 0) step_.times->ready[b] = step_.times->backward_end;
    step_.times->start[b] = Nanos();
    auto rows = used_[sparse_[s]] ? ddp::GatherRows(*group_, own_rows_[s], step_.divisor)
                                  : own_rows_[s].Make(0);
    if (!rows.ok()) return Annotate(rows.status(), absl::StrCat("rows of ", NameOf(sparse_[s])));
    all[s] = *std::move(rows);
    step_.times->end[b] = Nanos();
  }
  absl::MutexLock lock(&mutex_);
  gathered_ = std::move(all);
  return absl::OkStatus();
}

// Does nothing where unused parameters are found in each step: there the order of the first step
// says little about the others.
absl::Status Reducer::Impl::Rebuild(int64_t* waited) {
  if (rebuilt_ || !options_.rebuild || options_.unused == Unused::kFound) return absl::OkStatus();
  const int64_t before = generation_;
  SYNCLINE_RETURN_IF_ERROR(ShareOrder(waited));
  // The step's buckets have all ended.
  if (hook_ != nullptr && generation_ != before) hook_->Reset();
  absl::MutexLock lock(&mutex_);
  rebuilt_ = true;
  return absl::OkStatus();
}

absl::Status Reducer::Impl::ShareOrder(int64_t* waited) {
  std::vector<int64_t> order = step_.arrival;
  std::vector<bool> arrived(parameters_.size());
  for (int64_t i : order) arrived[i] = true;
  for (int64_t i : DefaultOrder()) {
    if (!arrived[i]) order.push_back(i);
  }
  if (!order.empty()) {
    const Stopwatch stopwatch(waited);
    const absl::Status sent = ExchangeOf(*group_).Broadcast(Tensor::Of(order), 0);
    if (!sent.ok()) return Annotate(sent, "the new order of the buckets");
  }
  return AdoptOrder(order);
}

absl::Status Reducer::Impl::AdoptOrder(const std::vector<int64_t>& order) {
  // It is rank 0's, and its numbers are used as indices.
  std::vector<int64_t> received = order, expected = DefaultOrder();
  std::sort(received.begin(), received.end());
  std::sort(expected.begin(), expected.end());
  if (received != expected) {
    return WithRanks(BackendError("rank 0 sent an order that is none of the parameters: do all "
                                  "ranks run the same version of Syncline?"),
                     {0});
  }
  auto buckets = ddp::AssignBuckets(parameters_, order, options_.caps);
  if (buckets == layout_.buckets) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(ddp::BucketLayout layout,
                            ddp::Allocate(std::move(buckets), parameters_));
  if (lane_ != nullptr) {
    std::vector<std::pair<Tensor, Tensor>> copies;
    for (int64_t i : order) copies.emplace_back(layout.gradients[i], layout_.gradients[i]);
    const Stream current = CurrentStream(device());
    const absl::Status copied = lane_->CopyAll(copies, current);
    using Layouts = std::pair<ddp::BucketLayout, ddp::BucketLayout>;
    ddp::KeepUntilDone(current, std::make_shared<Layouts>(layout_, layout));
    SYNCLINE_RETURN_IF_ERROR(copied);
  } else {
    for (int64_t i : order) {
      const Tensor& from = layout_.gradients[i];
      tensor::CopyBytes(layout.gradients[i].data(), from.data(), from.nbytes());
    }
  }
  absl::MutexLock lock(&mutex_);
  layout_ = std::move(layout);
  ++generation_;
  return absl::OkStatus();
}

void Reducer::Impl::End(int64_t begun, int64_t waited, const absl::Status& outcome) {
  Times& times = *step_.times;
  const auto since = [&times](int64_t at) { return at == 0 ? 0 : at - times.begin; };
  if (last_times_ != nullptr) FillTimes(*last_times_);  // Now or never.
  const int64_t now = Nanos();
  step_.own_time += now - begun - waited;
  if (outcome.ok()) ++steps_;
  stats_.steps = steps_;
  stats_.hook = HookName();
  stats_.ready.clear();
  stats_.start.clear();
  stats_.end.assign(times.end.size(), 0);
  for (size_t b = 0; b < times.end.size(); ++b) {
    stats_.ready.push_back(since(times.ready[b]));
    stats_.start.push_back(since(times.start[b]));
  }
  stats_.bucket_bytes = step_.bytes;
  stats_.bucket_parameters = step_.counts;
  for (size_t s = 0; s < gathered_.size(); ++s) {
    stats_.bucket_bytes.push_back(
        static_cast<int64_t>(gathered_[s].indices.nbytes() + gathered_[s].values.nbytes()));
    stats_.bucket_parameters.push_back(1);
  }
  stats_.backward_end = since(times.backward_end);
  stats_.step_end = since(now);
  stats_.own_time = step_.own_time;
  stats_.copy_time = step_.copy_time;
  last_times_ = step_.times;
  FillTimes(times);
  std::fill(accumulated_.begin(), accumulated_.end(), false);
  step_.under_way = false;
  step_.is_finishing = false;
}

void Reducer::Impl::FillTimes(Times& times) {
  if (times.is_counted) return;
  bool all_known = true;
  for (size_t b = 0; b < times.end.size(); ++b) {
    const int64_t end = times.end[b];
    stats_.end[b] = end == 0 ? 0 : end - times.begin;
    all_known = all_known && end != 0;
  }
  // On a device a bucket ends when it ends, and one that has failed may never.
  if (!all_known && lane_ != nullptr) return;
  times.is_counted = true;
  all_communication_ += static_cast<double>(stats_.communication_time());
  all_hidden_ += static_cast<double>(stats_.hidden_time());
  stats_.total_overlap_share = all_communication_ == 0 ? 1 : all_hidden_ / all_communication_;
}

}  // namespace syncline
