// Calls on tensors of a device, made from calls on tensors of the CPU.
#ifndef SYNCLINE_TESTS_SUPPORT_DEVICE_CALLS_H_
#define SYNCLINE_TESTS_SUPPORT_DEVICE_CALLS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "syncline/collective.h"
#include "syncline/device.h"
#include "syncline/tensor.h"

namespace syncline {

// The device of a rank: each has its own, as far as there are enough.
absl::StatusOr<Device> DeviceOfRank(int rank);

// Tensors on a device that stand for tensors of the CPU: those that are the same memory stand for
// each other there too. Not thread-safe.
class DeviceTensors {
 public:
  explicit DeviceTensors(const Device& device) : device_(device) {}

  // The device's tensor for `host`, with its elements: the copy is enqueued on the current stream,
  // from memory that stays.
  absl::StatusOr<Tensor> Of(const Tensor& host);
  absl::StatusOr<std::vector<Tensor>> Of(absl::Span<const Tensor> host);

  // The call on the device that stands for `host`.
  absl::StatusOr<Collective> Of(const Collective& host);

  // Waits until the current stream has done what it has been told to, so that nothing uses the
  // tensors any more.
  absl::Status Synchronize() const;

  // Waits until the current stream has done what it has been told to, and copies the elements of
  // all tensors back. A copy to memory that is not pinned, behind work that has not ended, would
  // keep the driver busy until then: another rank of this process could not launch what that work
  // waits for.
  absl::Status CopyBack() const;

 private:
  const Device device_;
  std::vector<std::pair<Tensor, Tensor>> pairs_;  // {host, device}
};

}  // namespace syncline

#endif  // SYNCLINE_TESTS_SUPPORT_DEVICE_CALLS_H_
