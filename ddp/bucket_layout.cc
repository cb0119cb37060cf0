#include "ddp/bucket_layout.h"

#include <cstring>
#include <utility>

#include "syncline/check.h"
#include "syncline/device.h"
#include "syncline/device_memory.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"

namespace syncline::ddp {
namespace {

// Bytes of a bucket. All-reduces of less gain nothing by direct access; see benchmarks/.
constexpr size_t kLeastShared = 16 << 20;

// Zeros, except on a device. Where it pays, in memory that other ranks of the host can read
// directly. Gradients are handed out as views: a child of fork, such as a loader of data, must not
// write its parent's.
absl::StatusOr<Tensor> MakeFlat(const Device& device, DType dtype, int64_t count) {
  if (device.type != DeviceType::kCpu) return EmptyOnDevice(device, dtype, {count});
  if (static_cast<size_t>(count) * SizeOf(dtype) >= kLeastShared) {
    absl::StatusOr<Tensor> shared = EmptyShared(dtype, {count}, AfterFork::kOwn);
    if (shared.ok()) return shared;
  }
  return Tensor::TryZeros(dtype, {count});
}

}  // namespace

absl::StatusOr<BucketLayout> Allocate(std::vector<std::vector<int64_t>> buckets,
                                      const std::vector<Tensor>& parameters) {
  BucketLayout layout;
  layout.buckets = std::move(buckets);
  layout.gradients.resize(parameters.size());
  layout.bucket_of.assign(parameters.size(), -1);
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    int64_t total = 0;
    for (int64_t i : layout.buckets[b]) total += parameters[i].numel();
    const Tensor& first = parameters[layout.buckets[b].front()];
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor flat, MakeFlat(first.device(), first.dtype(), total));
    int64_t offset = 0;
    for (int64_t i : layout.buckets[b]) {
      layout.bucket_of[i] = static_cast<int64_t>(b);
      layout.gradients[i] =
          flat.Slice(offset, parameters[i].numel()).Reshape(parameters[i].shape());
      offset += parameters[i].numel();
    }
    layout.flats.push_back(flat);
  }
  return layout;
}

void Clear(const Tensor& tensor) {
  SYNCLINE_DCHECK(tensor.device().type == DeviceType::kCpu);
  if (tensor.nbytes() > 0) std::memset(tensor.data(), 0, tensor.nbytes());
}

}  // namespace syncline::ddp
