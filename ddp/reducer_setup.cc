// Between steps: the plan of the buckets, hooks, uneven inputs, another group.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ddp/bucketing.h"
#include "ddp/reducer_impl.h"
#include "syncline/deadline.h"
#include "syncline/status.h"

namespace syncline {
namespace {

// How long to wait for operations of a group that has been replaced.
constexpr absl::Duration kDropTimeout = absl::Seconds(2);

// Types and shapes only: nobody's memory is held.
std::vector<Tensor> WithoutElements(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> result;
  for (const Tensor& tensor : tensors) {
    result.emplace_back(nullptr, tensor.dtype(), tensor.shape(), absl::Span<const int64_t>(),
                        tensor.device());
  }
  return result;
}

// The hook is kept apart: it is destroyed when another one replaces it.
Reducer::Options WithoutHook(Reducer::Options options) {
  options.hook = nullptr;
  return options;
}

// Without the number of the device: ranks of a host have one each.
std::string Description(const Tensor& parameter) {
  const std::string text = parameter.ToString();
  if (parameter.device().type == DeviceType::kCpu) return text;
  return text.substr(0, text.rfind(':'));
}

absl::string_view Name(Reducer::Unused unused) {
  switch (unused) {
    case Reducer::Unused::kRefused:
      return "refuse them";
    case Reducer::Unused::kFound:
      return "find them in each step";
    case Reducer::Unused::kRecorded:
      return "record them in the first step (static graph)";
  }
  return "";
}

std::string ToString(const BucketCaps& caps) {
  if (caps.list.empty()) return absl::StrCat(caps.first, " and then ", caps.others, " bytes");
  return absl::StrCat(absl::StrJoin(caps.list, ", "), " bytes");
}

}  // namespace

Reducer::Impl::Impl(std::shared_ptr<ProcessGroup> group, const std::vector<Tensor>& parameters,
                    Options options)
    : parameters_(WithoutElements(parameters)),
      options_(WithoutHook(options)),
      sparse_(options_.sparse),
      sparse_place_(parameters.size(), -1),
      group_(std::move(group)),
      hook_(std::move(options.hook)),
      accumulated_(parameters.size()) {
  std::sort(sparse_.begin(), sparse_.end());
}

Reducer::Impl::~Impl() {
  lives_ = nullptr;  // Before the hook, which fails what is in flight.
  if (hook_ != nullptr) hook_->Release(this);
  if (lane_ == nullptr) return;
  // Then the lane is behind all that this thread's stream does with the gradients.
  lane_->WaitForCurrent().IgnoreError();
  ddp::KeepUntilDone(lane_->stream(), std::make_shared<ddp::BucketLayout>(std::move(layout_)));
}

absl::Status Reducer::Impl::Connect() {
  absl::Status own = CheckOptions();
  serves_host_ = ddp::ServesHost(*group_);
  own.Update(MakeLane());
  if (own.ok()) own = AcquireHook(hook_.get());
  if (own.ok()) own = PlanBuckets();
  if (!own.ok() && !serves_host_ && lane_ == nullptr) {
    // In a group of devices alone, a rank without one can tell the others only so.
    group_->Abort(absl::StrCat("rank ", group_->rank(), ": ", own.message()));
    return own;
  }
  SYNCLINE_RETURN_IF_ERROR(ddp::CheckSameOnAllRanks(
      ExchangeOf(*group_), own.ok() ? Fingerprint() : ddp::OptionsFingerprint(), own));
  if (hook_ == nullptr) return absl::OkStatus();
  return Annotate(hook_->Attach(group_), absl::StrCat("communication hook '", HookName(), "'"));
}

absl::Status Reducer::Impl::CheckOptions() const {
  if (parameters_.empty()) return ArgumentError("a reducer needs at least one parameter");
  if (!options_.names.empty() && options_.names.size() != parameters_.size()) {
    return ArgumentError(absl::StrCat(options_.names.size(), " names for ", parameters_.size(),
                                      " parameters: give one for each, or none"));
  }
  std::vector<int64_t> caps = options_.caps.list;
  if (caps.empty()) caps = {options_.caps.first, options_.caps.others};
  if (*std::min_element(caps.begin(), caps.end()) <= 0) {
    return ArgumentError(
        absl::StrCat("bucket caps must be positive, not ", ToString(options_.caps)));
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const absl::Status averages = CheckReduction(parameters_[i].dtype(), ReduceOp::kAvg);
    if (!averages.ok()) return Annotate(averages, NameOf(i));
    if (IsFloat8(parameters_[i].dtype())) {
      return ArgumentError(absl::StrCat(NameOf(i), " is ", Name(parameters_[i].dtype()),
                                        ", in which gradients are not added up: pass one of the "
                                        "type of its gradient, float32 or bfloat16"));
    }
    if (parameters_[i].device() != device()) {
      return ArgumentError(absl::StrCat(NameOf(0), " is on ", ToString(device()), ", ", NameOf(i),
                                        " on ", ToString(parameters_[i].device()),
                                        ": a reducer averages gradients of one device; make one "
                                        "for each"));
    }
  }
  if (is_on_device() && !sparse_.empty()) {
    return UnsupportedError(absl::StrCat("sparse gradients, such as that of ", NameOf(sparse_[0]),
                                         ", are averaged on the CPU, not on ", ToString(device()),
                                         ": make its gradient dense"));
  }
  for (size_t s = 0; s < sparse_.size(); ++s) {
    SYNCLINE_RETURN_IF_ERROR(CheckIndex(sparse_[s]));
    if (s > 0 && sparse_[s] == sparse_[s - 1]) {
      return ArgumentError(absl::StrCat(NameOf(sparse_[s]), " is twice among the sparse ones"));
    }
    if (!parameters_[sparse_[s]].shape().empty()) continue;
    return ArgumentError(absl::StrCat(NameOf(sparse_[s]), " is a single element: it has no rows"));
  }
  return absl::OkStatus();
}

std::vector<int64_t> Reducer::Impl::DefaultOrder() const {
  std::vector<int64_t> order;
  for (int64_t i = static_cast<int64_t>(parameters_.size()) - 1; i >= 0; --i) {
    if (sparse_place_[i] < 0) order.push_back(i);
  }
  return order;
}

absl::Status Reducer::Impl::PlanBuckets() {
  for (size_t s = 0; s < sparse_.size(); ++s) {
    sparse_place_[sparse_[s]] = static_cast<int64_t>(s);
    own_rows_.emplace_back(parameters_[sparse_[s]]);
  }
  auto buckets = ddp::AssignBuckets(parameters_, DefaultOrder(), options_.caps);
  SYNCLINE_ASSIGN_OR_RETURN(layout_, ddp::Allocate(std::move(buckets), parameters_));
  generation_ = 1;
  if (lane_ == nullptr) return absl::OkStatus();
  return lane_->ClearNow(layout_.flats, group_->timeout());
}

absl::Status Reducer::Impl::MakeLane() {
  if (parameters_.empty() || !is_on_device()) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(lane_, ddp::DeviceLane::Make(device()));
  return absl::OkStatus();
}

ddp::OptionsFingerprint Reducer::Impl::Fingerprint() const {
  const bool has_names = !options_.names.empty();
  ddp::OptionsFingerprint options = {{"the number of parameters", absl::StrCat(parameters_.size())},
                                     {"whether parameters have names", has_names ? "yes" : "no"}};
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (has_names) {
      options.push_back(
          {absl::StrCat("the name of parameter ", i), absl::StrCat("'", options_.names[i], "'")});
    }
    options.push_back(
        {absl::StrCat(has_names ? "parameter " : "", NameOf(i)), Description(parameters_[i])});
  }
  options.push_back(
      {"the sparse parameters", absl::StrCat("[", absl::StrJoin(sparse_, ", "), "]")});
  options.push_back({"the bucket caps", ToString(options_.caps)});
  options.push_back({"what to do about unused parameters", std::string(Name(options_.unused))});
  options.push_back({"whether buckets are rebuilt", options_.rebuild ? "yes" : "no"});
  options.push_back({"the communication hook", HookName()});
  return options;
}

std::string Reducer::Impl::HookName() const {
  return hook_ == nullptr ? "all_reduce" : hook_->name();
}

absl::Status Reducer::Impl::AcquireHook(CommHook* hook) const {
  if (hook == nullptr) return absl::OkStatus();
  if (hook->Acquire(this)) {
    return Annotate(hook->SetDevice(device()),
                    absl::StrCat("communication hook '", hook->name(), "'"));
  }
  return ArgumentError(absl::StrCat("communication hook '", hook->name(),
                                    "' belongs to another reducer: make one for each"));
}

absl::StatusOr<int64_t> Reducer::Impl::CountActive(Activity mine) {
  std::shared_ptr<ProcessGroup> group;
  {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(CheckBetweenSteps("count_active"));
    group = group_;
  }
  std::vector<int64_t> active = {mine == Activity::kActive ? 1 : 0};
  SYNCLINE_RETURN_IF_ERROR(ExchangeOf(*group).AllReduce(Tensor::Of(active)));
  return active[0];
}

absl::Status Reducer::Impl::ShadowStep(int64_t divisor) {
  Step step;
  step.divisor = divisor;
  {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(CheckStep(step));
    const absl::Status here = RecordHere();
    if (KindOf(here) == ErrorKind::kUnsupported) return here;
    std::fill(accumulated_.begin(), accumulated_.end(), false);
    Begin(step);
    step_.error.Update(here);  // Finish tells the other ranks.
    if (!FindsUnused()) {
      for (size_t i = 0; i < step_.states.size(); ++i) {
        if (step_.states[i] == State::kAwaited) step_.states[i] = State::kReady;
      }
      for (size_t b = 0; b < layout_.flats.size(); ++b) Clear(layout_.flats[b], b);
    }
  }
  return Finish();
}

absl::Status Reducer::Impl::SetHook(std::shared_ptr<CommHook> hook) {
  std::shared_ptr<ProcessGroup> group;
  {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(CheckBetweenSteps("set_hook"));
    group = group_;
  }
  const std::string name = hook == nullptr ? "all_reduce" : hook->name();
  absl::Status status = AcquireHook(hook.get());
  status = ddp::CheckSameOnAllRanks(ExchangeOf(*group), {{"the communication hook", name}}, status);
  if (status.ok() && hook != nullptr) {
    status = Annotate(hook->Attach(group), absl::StrCat("communication hook '", name, "'"));
  }
  if (status.ok()) {
    absl::MutexLock lock(&mutex_);
    hook_.swap(hook);
  }
  // The hook that is not used is released and destroyed without the mutex: it may wait, or need a
  // lock that another thread holds while it waits for the mutex.
  if (hook != nullptr && hook != hook_) hook->Release(this);
  return status;
}

absl::Status Reducer::Impl::ReplaceGroup(std::shared_ptr<ProcessGroup> group) {
  if (group == nullptr) return ArgumentError("a reducer needs a process group");
  SYNCLINE_RETURN_IF_ERROR(DropStep());
  SYNCLINE_RETURN_IF_ERROR(ddp::CheckSameOnAllRanks(ExchangeOf(*group), Fingerprint()));
  SYNCLINE_RETURN_IF_ERROR(AdoptState(*group));
  {
    absl::MutexLock lock(&mutex_);
    group_ = group;
    serves_host_ = ddp::ServesHost(*group);
  }
  if (lane_ != nullptr) SYNCLINE_RETURN_IF_ERROR(lane_->WaitForCurrent());
  if (hook_ == nullptr) return absl::OkStatus();
  return Annotate(hook_->Attach(group), absl::StrCat("communication hook '", HookName(), "'"));
}

absl::Status Reducer::Impl::DropStep() {
  std::vector<std::shared_ptr<Work>> works;
  std::vector<ddp::BucketWork> dropped;  // Values that go without the mutex.
  {
    absl::MutexLock lock(&mutex_);
    if (step_.is_finishing) return ArgumentError("finish is under way in another thread");
    SYNCLINE_RETURN_IF_ERROR(AwaitOthers());
    std::fill(accumulated_.begin(), accumulated_.end(), false);
    if (!step_.under_way && !is_in_doubt_) return absl::OkStatus();
    step_.under_way = false;
    dropped.swap(step_.device_work);
    works = step_.works;
    works.push_back(step_.used_work);
  }
  const Deadline deadline(kDropTimeout);
  bool all_ended = true;
  for (const std::shared_ptr<Work>& work : works) {
    if (work == nullptr) continue;
    (void)work->Wait(deadline.Remaining());  // Its outcome no longer matters.
    all_ended = all_ended && work->IsCompleted();
  }
  if (all_ended && lane_ == nullptr) return absl::OkStatus();
  // On a device, a work that has ended by an error may have left its kernel behind.
  if (lane_ != nullptr) {
    ddp::KeepUntilDone(lane_->stream(), std::make_shared<ddp::BucketLayout>(layout_));
    SYNCLINE_RETURN_IF_ERROR(MakeLane());
  }
  // Operations that still run may write: they keep the old buckets, and later steps get new ones.
  SYNCLINE_ASSIGN_OR_RETURN(ddp::BucketLayout layout, ddp::Allocate(layout_.buckets, parameters_));
  if (lane_ != nullptr) {
    SYNCLINE_RETURN_IF_ERROR(lane_->ClearNow(layout.flats, group_->timeout()));
  }
  absl::MutexLock lock(&mutex_);
  layout_ = std::move(layout);
  ++generation_;
  is_in_doubt_ = false;
  return absl::OkStatus();
}

// Takes rank 0's state. Ranks that failed in the same step may differ in whether it has ended.
absl::Status Reducer::Impl::AdoptState(ProcessGroup& group) {
  std::vector<int64_t> state = {steps_, rebuilt_, recorded_, !used_.empty()};
  const size_t fixed = state.size();
  for (const auto& bucket : layout_.buckets) {
    state.insert(state.end(), bucket.begin(), bucket.end());
  }
  const size_t used = state.size();
  state.resize(used + parameters_.size());
  std::copy(used_.begin(), used_.end(), state.begin() + used);
  SYNCLINE_RETURN_IF_ERROR(ExchangeOf(group).Broadcast(Tensor::Of(state), 0));
  const absl::Status adopted = AdoptOrder({state.begin() + fixed, state.begin() + used});
  if (!adopted.ok()) {
    group.Abort(adopted.message());  // The others have gone on, and would wait for this rank.
    return adopted;
  }
  absl::MutexLock lock(&mutex_);
  steps_ = state[0];
  rebuilt_ = state[1] != 0;
  recorded_ = state[2] != 0;
  used_.clear();
  if (state[3] != 0) used_.assign(state.begin() + used, state.end());
  return absl::OkStatus();
}

}  // namespace syncline
