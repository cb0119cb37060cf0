#include "ddp/hooks/scratch.h"

#include <memory>
#include <utility>

#include "ddp/device_lane.h"
#include "syncline/device_memory.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"
#include "syncline/stream.h"

namespace syncline::ddp {
namespace {

// Collectives of less gain nothing by direct access; see benchmarks/.
constexpr int64_t kLeastShared = 16 << 20;

absl::StatusOr<Tensor> Allocate(int64_t bytes, const Device& device) {
  if (device.type != DeviceType::kCpu) return EmptyOnDevice(device, DType::kUInt8, {bytes});
  if (bytes >= kLeastShared) {
    absl::StatusOr<Tensor> shared = EmptyShared(DType::kUInt8, {bytes});
    if (shared.ok()) return shared;
  }
  return Tensor::TryZeros(DType::kUInt8, {bytes});
}

}  // namespace

absl::StatusOr<Tensor> Scratch::Take(DType dtype, int64_t count, const Device& device) {
  const int64_t bytes = count * static_cast<int64_t>(SizeOf(dtype));
  if (memory_.numel() < bytes || memory_.device() != device) {
    Leave();
    memory_ = Tensor();  // Not both at once.
    SYNCLINE_ASSIGN_OR_RETURN(memory_, Allocate(bytes, device));
    if (device.type != DeviceType::kCpu) stream_ = CurrentStream(device);
  }
  return Tensor(memory_.data(), dtype, {count}, {}, device, memory_.owner());
}

void Scratch::Leave() {
  if (memory_.device().type == DeviceType::kCpu) return;
  KeepUntilDone(stream_, std::make_shared<Tensor>(memory_));
  memory_ = Tensor();
}

}  // namespace syncline::ddp
