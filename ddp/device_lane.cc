#include "ddp/device_lane.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/device/kernels.h"
#include "core/device/stream_handle.h"
#include "syncline/deadline.h"
#include "syncline/reduce_op.h"
#include "syncline/status.h"

namespace syncline::ddp {
namespace {

// For what a device does with memory that nobody can watch.
constexpr absl::Duration kLongestKeepTime = absl::Seconds(10);

// A stream is kept, too: it is destroyed when its work has ended.
struct Held {
  BucketWork work;
  Tensor bucket;
  std::shared_ptr<const Stream> stream;
};

}  // namespace

void KeepUntilDone(const Stream& stream, std::shared_ptr<const void> held) {
  const auto runtime = device::DeviceRuntime::Get();
  if (!runtime.ok()) return;
  const auto keep = [&]() -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto end, (*runtime)->Record(stream));
    return device::KeepUntil(std::move(end), held);
  };
  if (keep().ok()) return;
  const absl::Status ended = (*runtime)->Synchronize(stream, Deadline(kLongestKeepTime));
  // A device that has failed does nothing any more; one that stands still may go on.
  if (KindOf(ended) == ErrorKind::kTimeout) new std::shared_ptr<const void>(std::move(held));
}

void BucketWork::AddReady(const Stream& stream, std::shared_ptr<device::Event> event) {
  if (event == nullptr) return;
  const auto same = std::find_if(ready.begin(), ready.end(),
                                 [&](const auto& known) { return known.first == stream; });
  // A later event of a stream stands for the earlier ones. The handle of the default stream of each
  // thread, 2, is that of many.
  constexpr auto kPerThread = 2;
  if (same != ready.end() && stream.handle != reinterpret_cast<void*>(kPerThread)) {
    same->second = std::move(event);
  } else {
    ready.emplace_back(stream, std::move(event));
  }
}

absl::StatusOr<std::unique_ptr<DeviceLane>> DeviceLane::Make(const Device& device) {
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  // Kernels are loaded now rather than in the first step. Where there are none, some calls say so.
  runtime->KernelsOf(device).status().IgnoreError();
  SYNCLINE_ASSIGN_OR_RETURN(auto stream,
                            runtime->MakeStream(device, device::DeviceRuntime::Priority::kHigh));
  return std::unique_ptr<DeviceLane>(new DeviceLane(*runtime, std::move(stream)));
}

absl::StatusOr<std::shared_ptr<device::Event>> DeviceLane::RecordCurrent() const {
  const Stream current = CurrentStream(device());
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_captured, runtime_.IsCapturing(current));
  if (is_captured) {
    return UnsupportedError(
        "a step of a reducer cannot be captured into a graph: it takes streams of its own, and the "
        "host decides when a bucket starts");
  }
  return runtime_.Record(current);
}

absl::Status DeviceLane::Enqueue(BucketWork work, const Tensor& bucket) const {
  for (const auto& ready : work.ready) {
    SYNCLINE_RETURN_IF_ERROR(ready.second->EnqueueWait(*stream_));
  }
  if (work.empty()) return absl::OkStatus();
  const auto held = std::make_shared<Held>(Held{std::move(work), bucket, stream_});
  const absl::Status moved = Move(held->work);
  KeepUntilDone(*stream_, held);
  return moved;
}

absl::Status DeviceLane::Move(const BucketWork& work) const {
  for (const Tensor& tensor : work.clears) {
    SYNCLINE_RETURN_IF_ERROR(runtime_.Fill(tensor.data(), 0, tensor.nbytes(), *stream_));
  }
  SYNCLINE_RETURN_IF_ERROR(CopyAll(work.copies, *stream_));
  for (const auto& [to, value] : work.addends) {
    SYNCLINE_RETURN_IF_ERROR(Accumulate(to, value, *stream_));
  }
  return absl::OkStatus();
}

absl::Status DeviceLane::CopyAll(const std::vector<std::pair<Tensor, Tensor>>& copies,
                                 const Stream& stream) const {
  std::vector<device::CopySpan> spans;
  for (const auto& [to, from] : copies) {
    if (to.nbytes() > 0) spans.push_back({to.data(), from.data(), to.nbytes()});
  }
  if (spans.size() > 1) {
    const absl::StatusOr<const device::Kernels*> kernels = runtime_.KernelsOf(device());
    if (kernels.ok()) return (*kernels)->CopyMany(spans, stream);
    // Older drivers copy one by one.
    if (KindOf(kernels.status()) != ErrorKind::kUnsupported) return kernels.status();
  }
  for (const device::CopySpan& span : spans) {
    SYNCLINE_RETURN_IF_ERROR(runtime_.Copy(span.to, span.from, span.bytes, stream));
  }
  return absl::OkStatus();
}

absl::Status DeviceLane::Accumulate(const Tensor& to, const Tensor& value,
                                    const Stream& stream) const {
  if (to.nbytes() == 0) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(const device::Kernels* const kernels, runtime_.KernelsOf(device()));
  const void* const inputs[] = {to.data(), value.data()};
  return kernels->Reduce(to.dtype(), ReduceOp::kSum, to.data(), inputs, to.numel(), stream);
}

absl::Status DeviceLane::Divide(const Tensor& data, int divisor, const Stream& stream) const {
  if (data.nbytes() == 0) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(const device::Kernels* const kernels, runtime_.KernelsOf(device()));
  return kernels->Divide(data.dtype(), data.data(), divisor, data.numel(), stream);
}

absl::Status DeviceLane::CurrentWaits() const {
  SYNCLINE_ASSIGN_OR_RETURN(const auto end, runtime_.Record(*stream_));
  return end->EnqueueWait(CurrentStream(device()));
}

absl::Status DeviceLane::WaitForCurrent() const {
  SYNCLINE_ASSIGN_OR_RETURN(const auto end, runtime_.Record(CurrentStream(device())));
  return end->EnqueueWait(*stream_);
}

absl::Status DeviceLane::ClearNow(const std::vector<Tensor>& tensors,
                                  absl::Duration timeout) const {
  BucketWork work;
  work.clears = tensors;
  SYNCLINE_RETURN_IF_ERROR(Enqueue(std::move(work), Tensor()));
  return Annotate(runtime_.Synchronize(*stream_, Deadline(timeout)),
                  absl::StrCat("the buckets on ", ToString(device())));
}

}  // namespace syncline::ddp
