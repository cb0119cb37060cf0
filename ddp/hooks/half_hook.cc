#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/device/device_runtime.h"
#include "core/device/kernels.h"
#include "ddp/hooks/averaging.h"
#include "ddp/hooks/blocking_hook.h"
#include "ddp/hooks/bucket_averager.h"
#include "ddp/hooks/half_kernels.h"
#include "ddp/hooks/scratch.h"
#include "syncline/hooks.h"
#include "syncline/reduce_op.h"
#include "syncline/status.h"
#include "syncline/stream.h"

namespace syncline {
namespace {

class HalfAverager : public ddp::BucketAverager {
 public:
  explicit HalfAverager(DType half) : half_(half) {}

  std::string name() const override { return absl::StrCat(Name(half_), "_compress"); }

  // By kernels, which not every driver has.
  absl::Status SetDevice(const Device& device) override {
    if (device.type == DeviceType::kCpu) return absl::OkStatus();
    SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
    return runtime->KernelsOf(device).status();
  }

  // What was averaged in the old group may not have ended on its stream.
  absl::Status Attach(const std::shared_ptr<ProcessGroup>&) override {
    scratch_.Leave();
    return absl::OkStatus();
  }

  absl::Status Average(GradBucket& bucket, ProcessGroup& group) override {
    const Tensor& buffer = bucket.buffer;
    if (!ddp::IsCompressible(buffer.dtype()))
      return ddp::AllReduceAverage(buffer, bucket.divisor, group);
    if (buffer.device().type != DeviceType::kCpu) return AverageOnDevice(bucket, group);
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor halves, scratch_.Take(half_, buffer.numel()));
    const auto count = static_cast<size_t>(buffer.numel());
    ddp::Narrow(half_, halves.data(), buffer.dtype(), buffer.data(), 1.0 / bucket.divisor, count);
    SYNCLINE_RETURN_IF_ERROR(group.AllReduce(halves, ReduceOp::kSum));
    ddp::Widen(buffer.dtype(), buffer.data(), half_, halves.data(), count);
    return absl::OkStatus();
  }

 private:
  absl::Status AverageOnDevice(const GradBucket& bucket, ProcessGroup& group) {
    const Tensor& buffer = bucket.buffer;
    const int64_t count = buffer.numel();
    const Stream stream = CurrentStream(buffer.device());
    SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
    SYNCLINE_ASSIGN_OR_RETURN(const device::Kernels* const kernels,
                              runtime->KernelsOf(buffer.device()));
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor halves, scratch_.Take(half_, count, buffer.device()));
    SYNCLINE_RETURN_IF_ERROR(
        kernels->Scale(buffer.dtype(), buffer.data(), 1.0 / bucket.divisor, count, stream));
    SYNCLINE_RETURN_IF_ERROR(
        kernels->Convert(half_, halves.data(), buffer.dtype(), buffer.data(), count, stream));
    SYNCLINE_RETURN_IF_ERROR(group.AllReduce(halves, ReduceOp::kSum));
    return kernels->Convert(buffer.dtype(), buffer.data(), half_, halves.data(), count, stream);
  }

  const DType half_;
  ddp::Scratch scratch_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<CommHook>> HalfHook(DType half) {
  if (half != DType::kFloat16 && half != DType::kBFloat16) {
    return ArgumentError(
        absl::StrCat("gradients are compressed to float16 or bfloat16, not ", Name(half)));
  }
  return ddp::MakeBlockingHook(std::make_unique<HalfAverager>(half));
}

}  // namespace syncline
