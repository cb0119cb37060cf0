// What one call at a time copies its tensors with, between a device and memory of the host.
#ifndef SYNCLINE_CORE_GROUP_STAGING_LANE_H_
#define SYNCLINE_CORE_GROUP_STAGING_LANE_H_

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"
#include "syncline/deadline.h"
#include "syncline/device.h"
#include "syncline/stream.h"

namespace syncline::group {

// Two streams of a device, one for each direction, and a few slots of page-locked memory, which
// are used in turn: while one is filled, the next is worked on and the one before is written back.
// Used by one thread at a time.
class StagingLane {
 public:
  static constexpr int kSlots = 3;

  // One slot: memory, and the last copy that uses it.
  struct Slot {
    std::shared_ptr<void> memory;
    size_t bytes = 0;
    std::shared_ptr<device::Event> last_use;
  };

  static absl::StatusOr<std::unique_ptr<StagingLane>> Make(device::DeviceRuntime& runtime,
                                                           const Device& device);

  const Stream& to_host() const { return *to_host_; }
  const Stream& from_host() const { return *from_host_; }

  // The slot of the n-th use, with at least `bytes` bytes, once its last copy has ended. Waits for
  // that on the host, see AwaitEvent.
  absl::StatusOr<Slot*> Acquire(size_t n, size_t bytes, const Deadline& deadline,
                                absl::FunctionRef<absl::Status()> check);

  // Waits until all copies have ended.
  absl::Status Drain(const Deadline& deadline);

 private:
  StagingLane(device::DeviceRuntime& runtime, std::shared_ptr<const Stream> to_host,
              std::shared_ptr<const Stream> from_host)
      : runtime_(runtime), to_host_(std::move(to_host)), from_host_(std::move(from_host)) {}

  device::DeviceRuntime& runtime_;
  const std::shared_ptr<const Stream> to_host_;
  const std::shared_ptr<const Stream> from_host_;
  std::array<Slot, kSlots> slots_;
};

// Waits on the host until `event` has passed. TimeoutError at the deadline, InterruptedError, or
// what `check` returns, which is asked now and then.
absl::Status AwaitEvent(const device::Event& event, const Deadline& deadline,
                        absl::FunctionRef<absl::Status()> check);

// The lanes of a group that no call uses at present. Thread-safe.
class StagingLanes {
 public:
  // A lane of `device`, which goes back when its owner lets go of it. UnsupportedError where the
  // process has no devices.
  absl::StatusOr<std::shared_ptr<StagingLane>> Take(const Device& device);

 private:
  // Shared with the lanes that are taken, which may outlive the group.
  struct Idle {
    absl::Mutex mutex;
    std::map<int, std::vector<std::unique_ptr<StagingLane>>> of_device ABSL_GUARDED_BY(mutex);
  };

  const std::shared_ptr<Idle> idle_ = std::make_shared<Idle>();
};

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_STAGING_LANE_H_
