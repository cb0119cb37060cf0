#include "core/group/native_backend.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/device/kernels.h"
#include "core/device/stream_handle.h"
#include "syncline/device_memory.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

using Tensors = std::vector<Tensor>;

// How long the copies after a plan's call may take.
constexpr absl::Duration kStoreTime = absl::Seconds(10);

// The end of a plan: of the work on its stream, after that of the backend's call in it.
class PlanHandle final : public device::StreamHandle {
 public:
  PlanHandle(std::shared_ptr<const device::Event> end, std::vector<Device> others)
      : StreamHandle(std::move(end), 0, std::move(others)) {}

  // For the end of the call in the plan.
  void CallEnded(const absl::Status& outcome) {
    {
      absl::MutexLock lock(&mutex_);
      outcome_ = outcome;
    }
    if (!outcome.ok()) End(outcome);
  }

 private:
  std::optional<absl::Status> Verdict() override {
    absl::MutexLock lock(&mutex_);
    return outcome_;
  }

  absl::Mutex mutex_;
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

// The loads and stores of a plan in memory of one device.
class NativeBackend::PlanBuffers {
 public:
  PlanBuffers(device::DeviceRuntime& runtime, const Stream& stream)
      : runtime_(runtime), stream_(stream) {}

  // The plan's collective, with buffers of this device.
  absl::StatusOr<Collective> MakeCall(const Plan& plan) {
    return plan.MakeCall([this](DType dtype, int64_t count) { return Make(dtype, count); });
  }

  absl::Status Load(const Collective& call, const Plan::Load& load) {
    const Tensor& first = load.from.front();
    if (first.nbytes() == 0) return absl::OkStatus();
    void* const to = load.to.In(call);
    if (load.from.size() == 1) return Copy(to, first.data(), first.nbytes());
    SYNCLINE_ASSIGN_OR_RETURN(const device::Kernels* const kernels,
                              runtime_.KernelsOf(stream_.device));
    std::vector<const void*> inputs;
    for (const Tensor& tensor : load.from) {
      inputs.push_back(tensor.data());
      if (tensor.device() == stream_.device) continue;
      SYNCLINE_ASSIGN_OR_RETURN(const Tensor here, Make(tensor.dtype(), tensor.numel()));
      SYNCLINE_RETURN_IF_ERROR(Copy(here.data(), tensor.data(), tensor.nbytes()));
      inputs.back() = here.data();
    }
    // An average is divided once, when all ranks' sums have been added.
    const ReduceOp op = call.reduce_op == ReduceOp::kAvg ? ReduceOp::kSum : call.reduce_op;
    return kernels->Reduce(first.dtype(), op, to, inputs, first.numel(), stream_);
  }

  absl::Status Divide(const Collective& call, int divisor) {
    SYNCLINE_ASSIGN_OR_RETURN(const device::Kernels* const kernels,
                              runtime_.KernelsOf(stream_.device));
    return kernels->Divide(call.tensor->dtype(), call.tensor->data(), divisor, call.tensor->numel(),
                           stream_);
  }

  absl::Status Store(const Collective& call, const Plan::Store& store) {
    const void* const from = store.from.In(call);
    if (store.to.nbytes() == 0 || store.to.data() == from) return absl::OkStatus();
    return Copy(store.to.data(), from, store.to.nbytes());
  }

  Tensors TakeBuffers() { return std::move(buffers_); }

 private:
  absl::StatusOr<Tensor> Make(DType dtype, int64_t count) {
    SYNCLINE_ASSIGN_OR_RETURN(Tensor made, EmptyOnDevice(stream_.device, dtype, {count}));
    buffers_.push_back(made);
    return made;
  }

  absl::Status Copy(void* to, const void* from, size_t bytes) {
    return runtime_.Copy(to, from, bytes, stream_);
  }

  device::DeviceRuntime& runtime_;
  const Stream stream_;
  Tensors buffers_;
};

absl::StatusOr<Completion> NativeBackend::Run(absl::Span<const Collective> collectives,
                                              const CallContext& context) {
  return backend_->Run(collectives, context);
}

absl::StatusOr<Completion> NativeBackend::RunPlan(const Plan& plan, const CallContext& context) {
  if (!plan.separate.empty()) {
    auto completion = backend_->Run(plan.separate, context);
    if (completion.ok() && completion->handle() != nullptr) {
      // The group knows the tensors of the plan's collective alone.
      completion->handle()->OnDone([held = plan.separate](const absl::StatusOr<int>&) {});
    }
    return completion;
  }
  if (capabilities_.is_stream_ordered) return RunBuffered(plan, context);
  return UnsupportedError(
      "operations on tensors of several devices need a backend that works on their streams");
}

absl::StatusOr<Completion> NativeBackend::RunBuffered(const Plan& plan,
                                                      const CallContext& context) {
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_captured, runtime->IsCapturing(context.caller->stream));
  if (is_captured) {
    return UnsupportedError(
        "an operation on tensors of several devices cannot be captured into a graph");
  }
  SYNCLINE_ASSIGN_OR_RETURN(const auto stream, StreamOf(*runtime, context.caller->stream.device));
  PlanBuffers buffers(*runtime, *stream);
  auto completion = Enqueue(plan, context, *runtime, *stream, buffers);
  // Buffers and tensors stay until the stream is done with them, also if the call fails before.
  SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<device::Event> end, runtime->Record(*stream));
  SYNCLINE_RETURN_IF_ERROR(device::KeepUntil(
      end, std::make_shared<const std::pair<Tensors, Plan>>(buffers.TakeBuffers(), plan)));
  SYNCLINE_RETURN_IF_ERROR(completion.status());

  std::vector<Device> others;
  for (const auto& other : context.caller->others) others.push_back(other->device());
  const auto handle = std::make_shared<PlanHandle>(end, std::move(others));
  if (completion->handle() == nullptr) {
    handle->CallEnded(absl::OkStatus());
  } else {
    completion->handle()->OnDone(
        [handle](const absl::StatusOr<int>& outcome) { handle->CallEnded(outcome.status()); });
  }
  // The call ends at its deadline by itself, with an error that says more.
  SYNCLINE_RETURN_IF_ERROR(device::StreamWatcher::Get().Watch(
      handle, Deadline(context.deadline.Remaining() + kStoreTime)));
  return Completion(handle);
}

absl::StatusOr<Completion> NativeBackend::Enqueue(const Plan& plan, const CallContext& context,
                                                  device::DeviceRuntime& runtime,
                                                  const Stream& stream, PlanBuffers& buffers) {
  SYNCLINE_RETURN_IF_ERROR(context.caller->ready->EnqueueWait(stream));
  for (const auto& other : context.caller->others) {
    SYNCLINE_RETURN_IF_ERROR(other->EnqueueWait(stream));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const Collective call, buffers.MakeCall(plan));
  for (const Plan::Load& load : plan.loads) SYNCLINE_RETURN_IF_ERROR(buffers.Load(call, load));
  CallerStream caller = {stream, nullptr, {}};
  SYNCLINE_ASSIGN_OR_RETURN(caller.ready, runtime.Record(stream));
  CallContext own = context;
  own.caller = &caller;
  own.collective = &call;
  SYNCLINE_ASSIGN_OR_RETURN(const Completion completion,
                            backend_->Run(absl::MakeConstSpan(&call, 1), own));
  if (completion.handle() != nullptr) {
    // The call's own stream uses the buffers until then.
    completion.handle()->OnDone([call](const absl::StatusOr<int>&) {});
    SYNCLINE_RETURN_IF_ERROR(completion.handle()->EnqueueWait(stream));
  }
  if (plan.divisor > 1 && call.reduce_op == ReduceOp::kAvg) {
    SYNCLINE_RETURN_IF_ERROR(buffers.Divide(call, plan.divisor));
  }
  for (const Plan::Store& store : plan.stores) {
    SYNCLINE_RETURN_IF_ERROR(buffers.Store(call, store));
  }
  return completion;
}

absl::StatusOr<std::shared_ptr<const Stream>> NativeBackend::StreamOf(
    device::DeviceRuntime& runtime, const Device& device) {
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<const Stream>& stream = streams_[device.index];
  if (stream == nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(stream, runtime.MakeStream(device));
  }
  return stream;
}

}  // namespace syncline::group
