// Where a reducer works on a device: the stream on which gradients go into buckets.
#ifndef SYNCLINE_DDP_DEVICE_LANE_H_
#define SYNCLINE_DDP_DEVICE_LANE_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "syncline/device.h"
#include "syncline/stream.h"
#include "syncline/tensor.h"

namespace syncline::ddp {

// Keeps `held` until what has been enqueued on `stream` so far has ended. Where that cannot be
// watched, waits for it here, for a limited time.
void KeepUntilDone(const Stream& stream, std::shared_ptr<const void> held);

// What is left to do to a bucket before it is averaged. Not thread-safe.
struct BucketWork {
  // Where the gradients are ready: the event of each stream that was added last.
  std::vector<std::pair<Stream, std::shared_ptr<device::Event>>> ready;
  std::vector<Tensor> clears;                      // Become zero.
  std::vector<std::pair<Tensor, Tensor>> copies;   // {to, from}
  std::vector<std::pair<Tensor, Tensor>> addends;  // {to, what is added to it}

  bool empty() const { return clears.empty() && copies.empty() && addends.empty(); }
  void AddReady(const Stream& stream, std::shared_ptr<device::Event> event);
};

// A stream of one device that waits for gradients and moves them. Nothing here waits on the host,
// except where it says so. Thread-safe.
class DeviceLane {
 public:
  // UnsupportedError if the process has no devices, ArgumentError if it does not have this one.
  static absl::StatusOr<std::unique_ptr<DeviceLane>> Make(const Device& device);

  const Stream& stream() const { return *stream_; }
  const Device& device() const { return stream_->device; }
  device::DeviceRuntime& runtime() const { return runtime_; }

  // Behind what is on this thread's current stream. UnsupportedError while that is captured.
  absl::StatusOr<std::shared_ptr<device::Event>> RecordCurrent() const;

  // Enqueues `work` behind the gradients it waits for: one launch for all copies, one for each
  // addend. `bucket` and the work's tensors stay until that has ended, also if it fails.
  absl::Status Enqueue(BucketWork work, const Tensor& bucket) const;

  // Copies on `stream`, in one launch where the driver has our kernels.
  absl::Status CopyAll(const std::vector<std::pair<Tensor, Tensor>>& copies,
                       const Stream& stream) const;
  // to += value, and data /= divisor, on `stream`.
  absl::Status Accumulate(const Tensor& to, const Tensor& value, const Stream& stream) const;
  absl::Status Divide(const Tensor& data, int divisor, const Stream& stream) const;

  // Makes this thread's current stream wait for what is on the lane, and the other way round.
  absl::Status CurrentWaits() const;
  absl::Status WaitForCurrent() const;

  // OK if the driver has our kernels, without which nothing is added up or divided.
  absl::Status CheckKernels() const { return runtime_.KernelsOf(device()).status(); }

  // Zeros. The host waits for them, so that any stream may use them.
  absl::Status ClearNow(const std::vector<Tensor>& tensors, absl::Duration timeout) const;

 private:
  DeviceLane(device::DeviceRuntime& runtime, std::shared_ptr<const Stream> stream)
      : runtime_(runtime), stream_(std::move(stream)) {}

  absl::Status Move(const BucketWork& work) const;

  device::DeviceRuntime& runtime_;
  const std::shared_ptr<const Stream> stream_;
};

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_DEVICE_LANE_H_
