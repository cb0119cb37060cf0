#include "ddp/hooks/scratch.h"

#include <utility>

#include "syncline/shared_memory.h"
#include "syncline/status.h"

namespace syncline::ddp {
namespace {

// Collectives of less gain nothing by direct access; see benchmarks/.
constexpr int64_t kLeastShared = 16 << 20;

absl::StatusOr<Tensor> Allocate(int64_t bytes) {
  if (bytes >= kLeastShared) {
    absl::StatusOr<Tensor> shared = EmptyShared(DType::kUInt8, {bytes});
    if (shared.ok()) return shared;
  }
  return Tensor::TryZeros(DType::kUInt8, {bytes});
}

}  // namespace

absl::StatusOr<Tensor> Scratch::Take(DType dtype, int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(SizeOf(dtype));
  if (memory_.numel() < bytes) {
    memory_ = Tensor();  // Not both at once.
    SYNCLINE_ASSIGN_OR_RETURN(memory_, Allocate(bytes));
  }
  return Tensor(memory_.data(), dtype, {count}, {}, {}, memory_.owner());
}

}  // namespace syncline::ddp
