// A step up to Finish: gradients come, buckets start.
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/tensor/copy_bytes.h"
#include "core/tensor/reduce_kernels.h"
#include "ddp/reducer_impl.h"
#include "syncline/status.h"

namespace syncline {
namespace {

absl::Status NamedHook(const std::string& hook, size_t b, const absl::Status& error) {
  return Annotate(error, absl::StrCat("communication hook '", hook, "', bucket ", b));
}

}  // namespace

int64_t Nanos() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

absl::Status Reducer::Impl::CheckIndex(int64_t index) const {
  if (index >= 0 && index < static_cast<int64_t>(parameters_.size())) return absl::OkStatus();
  return ArgumentError(absl::StrCat("there is no parameter ", index, ": indices go from 0 to ",
                                    parameters_.size() - 1));
}

absl::Status Reducer::Impl::CheckKind(int64_t index, bool sparse) const {
  SYNCLINE_RETURN_IF_ERROR(CheckIndex(index));
  if ((sparse_place_[index] >= 0) == sparse) return absl::OkStatus();
  return ArgumentError(sparse ? absl::StrCat(NameOf(index), " is not among the sparse parameters")
                              : absl::StrCat(NameOf(index), " is sparse: its gradients are rows, ",
                                             "marked ready with their indices"));
}

std::string Reducer::Impl::NameOf(int64_t index) const {
  return ddp::ParameterName(options_.names, index);
}

bool Reducer::Impl::FindsUnused() const {
  return options_.unused == Unused::kFound || (options_.unused == Unused::kRecorded && !recorded_);
}

bool Reducer::Impl::HasGradient(int64_t index) const {
  return step_.states[index] == State::kReady || accumulated_[index];
}

absl::Status Reducer::Impl::CheckBetweenSteps(absl::string_view call) const {
  if (!step_.under_way) return absl::OkStatus();
  if (!step_.error.ok()) return step_.error;
  return ArgumentError(absl::StrCat(call,
                                    " belongs between steps, and one is under way: call "
                                    "finish first"));
}

absl::Status Reducer::Impl::CheckStep(const Step& step) const {
  SYNCLINE_RETURN_IF_ERROR(CheckBetweenSteps("begin_step"));
  if (step.divisor < 0 || step.divisor >= int64_t{1} << 31) {
    return ArgumentError(absl::StrCat("divisor must be positive and less than 2^31, or 0 for the ",
                                      "number of ranks, not ", step.divisor));
  }
  if (!step.unused.empty() && options_.unused == Unused::kRefused) {
    return ArgumentError(
        "parameters were said to be unused, but this reducer refuses steps without all gradients: "
        "make it with find_unused_parameters");
  }
  for (int64_t index : step.unused) SYNCLINE_RETURN_IF_ERROR(CheckIndex(index));
  return absl::OkStatus();
}

absl::Status Reducer::Impl::BeginStep(const Step& step) {
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(CheckStep(step));
  SYNCLINE_RETURN_IF_ERROR(RecordHere());
  const int64_t begun = Nanos();
  Begin(step);
  const absl::Status started = StartReady();
  step_.own_time += Nanos() - begun;
  return started;
}

void Reducer::Impl::Begin(const Step& step) {
  step_.under_way = true;
  step_.sync = step.sync;
  step_.divisor = step.divisor == 0 ? group_->size() : step.divisor;
  step_.states.assign(parameters_.size(), State::kAwaited);
  step_.surplus.clear();
  step_.faults.clear();
  step_.arrival.clear();
  step_.awaited.clear();
  step_.bytes.clear();
  step_.counts.clear();
  for (size_t b = 0; b < layout_.buckets.size(); ++b) {
    step_.awaited.push_back(static_cast<int64_t>(layout_.buckets[b].size()));
    step_.bytes.push_back(static_cast<int64_t>(layout_.flats[b].nbytes()));
  }
  step_.counts = step_.awaited;
  step_.all_awaited = static_cast<int64_t>(parameters_.size());
  step_.has_unused = false;
  step_.next = 0;
  step_.works.assign(layout_.buckets.size(), nullptr);
  step_.device_work.clear();
  step_.device_work.resize(lane_ == nullptr ? 0 : layout_.buckets.size());
  step_.used_work = nullptr;
  step_.error = absl::OkStatus();
  step_.times = std::make_shared<Times>(layout_.buckets.size() + sparse_.size());
  step_.own_time = 0;
  step_.copy_time = 0;
  for (size_t s = 0; s < sparse_.size(); ++s) {
    if (!accumulated_[sparse_[s]]) own_rows_[s].Clear();
  }
  for (int64_t index : step.unused) SetUnused(index);
  if (options_.unused != Unused::kRecorded || !recorded_) return;
  for (size_t i = 0; i < used_.size(); ++i) {
    if (!used_[i]) SetUnused(static_cast<int64_t>(i));
  }
}

void Reducer::Impl::SetUnused(int64_t index) {
  if (step_.states[index] == State::kUnused) return;
  step_.states[index] = State::kUnused;
  step_.has_unused = true;
  --step_.all_awaited;
  const int64_t b = layout_.bucket_of[index];
  if (b < 0) return;
  if (!accumulated_[index] && step_.sync == Sync::kAllRanks) Clear(layout_.gradients[index], b);
  if (--step_.awaited[b] == 0) step_.times->ready[b] = Nanos();
}

absl::Status Reducer::Impl::RecordHere() {
  if (lane_ == nullptr) return absl::OkStatus();
  auto event = lane_->RecordCurrent();
  if (event.ok()) {
    step_.here = {CurrentStream(device()), *std::move(event)};
    return absl::OkStatus();
  }
  if (KindOf(event.status()) == ErrorKind::kUnsupported) return event.status();
  // The gradient is lost: this rank cannot go on with the step.
  step_.here = Ready();
  if (!step_.under_way) Begin({});
  step_.error.Update(event.status());
  return event.status();
}

void Reducer::Impl::Clear(const Tensor& tensor, size_t b) {
  if (lane_ == nullptr) return ddp::Clear(tensor);
  ddp::BucketWork& work = step_.device_work[b];
  work.clears.push_back(tensor);
  work.AddReady(step_.here.stream, step_.here.event);
}

absl::StatusOr<Tensor> Reducer::Impl::gradient(int64_t index) const {
  SYNCLINE_RETURN_IF_ERROR(CheckKind(index, false));
  absl::MutexLock lock(&mutex_);
  return layout_.gradients[index];
}

absl::Status Reducer::Impl::CheckMayMark(int64_t index) {
  if (!step_.under_way) Begin({});
  if (step_.states[index] == State::kAwaited && !step_.is_finishing) return step_.error;
  return MarkedTwiceError(index);
}

absl::Status Reducer::Impl::MarkedTwiceError(int64_t index) {
  if (!step_.error.ok()) return step_.error;
  if (step_.states[index] == State::kUnused && !step_.is_finishing) {
    step_.surplus.push_back(index);
    return ArgumentError(absl::StrCat(
        NameOf(index), " has a gradient, but ",
        recorded_ ? "had none in the first step, whose set of used parameters holds for all "
                    "(static graph)"
                  : "was said to be unused when this step began"));
  }
  // These words are PyTorch's, which scripts look for.
  return ArgumentError(absl::StrCat("Expected to mark a variable ready only once: the gradient of ",
                                    NameOf(index),
                                    step_.is_finishing ? " came while the step was being finished"
                                                       : " was marked ready twice in one step",
                                    ": call finish() between steps, and mark each parameter once"));
}

absl::Status Reducer::Impl::MarkReady(int64_t index) {
  SYNCLINE_RETURN_IF_ERROR(CheckKind(index, false));
  const int64_t begun = Nanos();
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(RecordHere());
  SYNCLINE_RETURN_IF_ERROR(CheckMayMark(index));
  if (lane_ != nullptr) {
    step_.device_work[layout_.bucket_of[index]].AddReady(step_.here.stream, step_.here.event);
  }
  return SetReady(index, begun);
}

absl::Status Reducer::Impl::CopyReady(int64_t index, const Tensor& value) {
  SYNCLINE_RETURN_IF_ERROR(CheckKind(index, false));
  const Tensor& parameter = parameters_[index];
  if (value.dtype() != parameter.dtype() || value.numel() != parameter.numel() ||
      !value.is_contiguous() || value.device() != parameter.device()) {
    return ArgumentError(absl::StrCat("the gradient of ", NameOf(index), " must be contiguous ",
                                      parameter.ToString(), ", not ",
                                      value.is_contiguous() ? "" : "strided ", value.ToString()));
  }
  if (lane_ != nullptr) return CopyOnDevice(index, value);
  const int64_t begun = Nanos();
  Tensor gradient_view;
  bool adds;
  {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(CheckMayMark(index));
    step_.states[index] = State::kCopying;
    ++step_.copying;
    gradient_view = layout_.gradients[index];
    adds = accumulated_[index];
  }
  const int64_t copying_since = Nanos();
  if (adds) {
    tensor::Accumulate(gradient_view.dtype(), ReduceOp::kSum, gradient_view.data(), value.data(),
                       gradient_view.numel());
  } else if (value.nbytes() > 0) {
    tensor::CopyBytes(gradient_view.data(), value.data(), value.nbytes());
  }
  const int64_t copied = Nanos() - copying_since;
  absl::MutexLock lock(&mutex_);
  --step_.copying;
  step_.copy_time += copied;
  return SetReady(index, begun + copied);
}

// The lane moves the value with the others of its bucket, once that is complete. A value that
// nobody keeps until then is moved at once, on the caller's stream.
absl::Status Reducer::Impl::CopyOnDevice(int64_t index, const Tensor& value) {
  const int64_t begun = Nanos();
  const size_t b = layout_.bucket_of[index];
  Tensor gradient_view;
  bool adds;
  {
    absl::MutexLock lock(&mutex_);
    // Before anything is noted: older drivers cannot add.
    if (accumulated_[index]) SYNCLINE_RETURN_IF_ERROR(lane_->CheckKernels());
    SYNCLINE_RETURN_IF_ERROR(RecordHere());
    SYNCLINE_RETURN_IF_ERROR(CheckMayMark(index));
    gradient_view = layout_.gradients[index];
    adds = accumulated_[index];
    if (value.owner() != nullptr) {
      ddp::BucketWork& work = step_.device_work[b];
      work.AddReady(step_.here.stream, step_.here.event);
      if (adds) {
        work.addends.emplace_back(gradient_view, value);
      } else if (value.data() != gradient_view.data()) {
        work.copies.emplace_back(gradient_view, value);
      }
      return SetReady(index, begun);
    }
    step_.states[index] = State::kCopying;
    ++step_.copying;
  }
  const Stream current = CurrentStream(device());
  const auto copy = [&]() -> absl::Status {
    // What the lane did to the bucket in earlier steps comes first.
    SYNCLINE_RETURN_IF_ERROR(lane_->CurrentWaits());
    if (adds) return lane_->Accumulate(gradient_view, value, current);
    if (value.data() == gradient_view.data()) return absl::OkStatus();
    return lane_->CopyAll({{gradient_view, value}}, current);
  };
  absl::Status copied = copy();
  absl::MutexLock lock(&mutex_);
  --step_.copying;
  if (copied.ok()) copied = RecordHere();
  if (!copied.ok()) {
    step_.error.Update(Annotate(copied, absl::StrCat("the gradient of ", NameOf(index))));
    return step_.error;
  }
  step_.device_work[b].AddReady(step_.here.stream, step_.here.event);
  return SetReady(index, begun);
}

absl::Status Reducer::Impl::MarkReadySparse(int64_t index, const Rows& rows) {
  SYNCLINE_RETURN_IF_ERROR(CheckKind(index, true));
  const int64_t begun = Nanos();
  ddp::RowBuffer& own = own_rows_[sparse_place_[index]];
  const absl::Status valid = own.Check(rows);
  if (!valid.ok()) return Annotate(valid, absl::StrCat("the gradient of ", NameOf(index)));
  {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(CheckMayMark(index));
    step_.states[index] = State::kCopying;
    ++step_.copying;
  }
  own.Append(rows);
  absl::MutexLock lock(&mutex_);
  --step_.copying;
  step_.times->ready[layout_.buckets.size() + sparse_place_[index]] = Nanos();
  return SetReady(index, begun);
}

absl::Status Reducer::Impl::SetReady(int64_t index, int64_t begun) {
  step_.states[index] = State::kReady;
  --step_.all_awaited;
  const int64_t b = layout_.bucket_of[index];
  absl::Status started;
  int64_t now = 0;
  if (b >= 0) {
    if (!rebuilt_) step_.arrival.push_back(index);
    if (--step_.awaited[b] == 0) {
      now = Nanos();
      step_.times->ready[b] = now;
    }
  }
  if (now != 0 || step_.all_awaited == 0) started = StartReady();
  step_.own_time += Nanos() - begun;
  return started;
}

absl::Status Reducer::Impl::StartReady() {
  if (step_.sync == Sync::kNone || step_.is_starting) return absl::OkStatus();
  step_.is_starting = true;
  while (step_.error.ok() && step_.next < step_.works.size() && step_.awaited[step_.next] == 0) {
    StartBucket(step_.next++);
  }
  const bool is_known = step_.is_finishing || (step_.all_awaited == 0 && !step_.has_unused);
  if (serves_host_ && step_.error.ok() && step_.next == step_.works.size() && is_known &&
      step_.used_work == nullptr) {
    StartUsedAllReduce();
  }
  step_.is_starting = false;
  return step_.error;
}

void Reducer::Impl::StartBucket(size_t b) {
  const std::shared_ptr<Times> times = step_.times;
  ddp::BucketWork device_work;
  if (lane_ != nullptr) device_work = std::move(step_.device_work[b]);
  mutex_.Unlock();
  const int64_t now = Nanos();
  int64_t hook_time = 0;
  auto work = Start(b, std::move(device_work), &hook_time);
  if (work.ok()) {
    (*work)->OnComplete([times, b](const absl::Status&) { times->Ended(b); });
    if (hook_ != nullptr && lane_ != nullptr) AbortIfHookFails(b, **work);
  }
  mutex_.Lock();
  times->start[b] = now;
  step_.own_time -= hook_time;
  if (work.ok()) {
    step_.works[b] = *std::move(work);
  } else {
    step_.error = work.status();
  }
}

absl::StatusOr<std::shared_ptr<Work>> Reducer::Impl::Start(size_t b, ddp::BucketWork work,
                                                           int64_t* hook_time) {
  if (lane_ == nullptr) return StartAverage(b, hook_time);
  const absl::Status enqueued = lane_->Enqueue(std::move(work), layout_.flats[b]);
  if (!enqueued.ok()) return Annotate(enqueued, absl::StrCat("bucket ", b));
  const StreamScope scope(lane_->stream());
  return StartAverage(b, hook_time);
}

absl::StatusOr<std::shared_ptr<Work>> Reducer::Impl::StartAverage(size_t b, int64_t* hook_time) {
  const Tensor& flat = layout_.flats[b];
  if (hook_ == nullptr) {
    if (step_.divisor == group_->size()) return group_->AllReduceAsync(flat, ReduceOp::kAvg);
    if (IsInteger(flat.dtype())) return group_->AllReduceAsync(flat, ReduceOp::kSum);
    return group_->AllReduceAsync(flat, ReduceOp::kPremulSum, {},
                                  1.0 / static_cast<double>(step_.divisor));
  }
  auto bucket = std::make_shared<GradBucket>();
  bucket->index = static_cast<int64_t>(b);
  bucket->count = static_cast<int64_t>(layout_.buckets.size());
  bucket->step = steps_;
  bucket->divisor = step_.divisor;
  bucket->buffer = flat;
  bucket->parameters = layout_.buckets[b];
  for (int64_t i : bucket->parameters) bucket->gradients.push_back(layout_.gradients[i]);
  const int64_t begun = Nanos();
  auto work = hook_->Start(std::move(bucket));
  *hook_time = Nanos() - begun;
  if (work.ok() && *work == nullptr) work = ArgumentError("it returned no Work");
  if (!work.ok()) return HookFailed(b, work.status());
  return work;
}

void Reducer::Impl::AbortIfHookFails(size_t b, Work& work) {
  // A reducer that is dropped ends its hook, which is no failure of the group.
  work.OnComplete([lives = std::weak_ptr<const bool>(lives_),
                   group = std::weak_ptr<ProcessGroup>(group_), hook = hook_->name(),
                   b](const absl::Status& outcome) {
    if (outcome.ok() || lives.expired()) return;
    const std::shared_ptr<ProcessGroup> alive = group.lock();
    if (alive == nullptr || !alive->status().ok()) return;
    alive->Abort(NamedHook(hook, b, outcome).message());
  });
}

absl::Status Reducer::Impl::HookFailed(size_t b, const absl::Status& error) {
  const absl::Status annotated = NamedHook(hook_->name(), b, error);
  // This rank cannot go on with the step, and the others must not wait for it.
  if (group_->status().ok()) group_->Abort(annotated.message());
  return annotated;
}

Tensor Reducer::Impl::UsedValues() const {
  const bool by_parameter = FindsUnused();
  const int64_t count = by_parameter ? static_cast<int64_t>(parameters_.size()) : 1;
  Tensor values = Tensor::Zeros(DType::kInt32, {count});
  int32_t* value = values.data_as<int32_t>();
  for (int64_t i = 0; by_parameter && i < count; ++i) value[i] = HasGradient(i) ? 1 : 0;
  for (size_t i = 0; i < step_.faults.size(); ++i) {
    if (step_.faults[i] != ddp::Fault::kNone) value[by_parameter ? i : 0] = 2;
  }
  return values;
}

void Reducer::Impl::StartUsedAllReduce() {
  const Tensor values = UsedValues();
  step_.used_values = values;
  mutex_.Unlock();
  auto work = group_->AllReduceAsync(values, ReduceOp::kMax);
  mutex_.Lock();
  if (work.ok()) {
    step_.used_work = *std::move(work);
  } else {
    step_.error = work.status();
  }
}

}  // namespace syncline
