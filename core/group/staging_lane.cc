#include "core/group/staging_lane.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

// How often the device is asked; copies of a chunk take about as long as the longest pause.
constexpr absl::Duration kShortestPause = absl::Microseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(1);

// Idle lanes that a group keeps for each device.
constexpr size_t kKeptLanes = 4;

}  // namespace

absl::Status AwaitEvent(const device::Event& event, const Deadline& deadline,
                        absl::FunctionRef<absl::Status()> check) {
  absl::Duration pause = kShortestPause;
  while (true) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool is_done, event.IsDone());
    if (is_done) return absl::OkStatus();
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
    SYNCLINE_RETURN_IF_ERROR(check());
    if (deadline.Expired()) {
      return TimeoutError(absl::StrCat(ToString(event.device()), " has not ended its work within ",
                                       absl::FormatDuration(deadline.timeout())));
    }
    absl::SleepFor(pause);
    pause = std::min(pause * 1.5, kLongestPause);
  }
}

absl::StatusOr<std::unique_ptr<StagingLane>> StagingLane::Make(device::DeviceRuntime& runtime,
                                                               const Device& device) {
  SYNCLINE_ASSIGN_OR_RETURN(auto to_host, runtime.MakeStream(device));
  SYNCLINE_ASSIGN_OR_RETURN(auto from_host, runtime.MakeStream(device));
  return std::unique_ptr<StagingLane>(
      new StagingLane(runtime, std::move(to_host), std::move(from_host)));
}

absl::StatusOr<StagingLane::Slot*> StagingLane::Acquire(size_t n, size_t bytes,
                                                        const Deadline& deadline,
                                                        absl::FunctionRef<absl::Status()> check) {
  Slot& slot = slots_[n % kSlots];
  if (slot.last_use != nullptr) {
    SYNCLINE_RETURN_IF_ERROR(AwaitEvent(*slot.last_use, deadline, check));
    slot.last_use = nullptr;
  }
  if (slot.bytes < bytes) {
    slot.memory = nullptr;
    slot.bytes = 0;
    SYNCLINE_ASSIGN_OR_RETURN(slot.memory, runtime_.AllocatePinned(bytes));
    slot.bytes = bytes;
  }
  return &slot;
}

absl::Status StagingLane::Drain(const Deadline& deadline) {
  SYNCLINE_RETURN_IF_ERROR(runtime_.Synchronize(*to_host_, deadline));
  return runtime_.Synchronize(*from_host_, deadline);
}

absl::StatusOr<std::shared_ptr<StagingLane>> StagingLanes::Take(const Device& device) {
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  std::unique_ptr<StagingLane> lane;
  {
    absl::MutexLock lock(&idle_->mutex);
    auto& idle = idle_->of_device[device.index];
    if (!idle.empty()) {
      lane = std::move(idle.back());
      idle.pop_back();
    }
  }
  if (lane == nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(lane, StagingLane::Make(*runtime, device));
  }
  const auto give_back = [idle = idle_, index = device.index](StagingLane* taken) {
    std::unique_ptr<StagingLane> owned(taken);
    absl::MutexLock lock(&idle->mutex);
    auto& kept = idle->of_device[index];
    if (kept.size() < kKeptLanes) kept.push_back(std::move(owned));
  };
  return std::shared_ptr<StagingLane>(lane.release(), give_back);
}

}  // namespace syncline::group
