#include "syncline/parameter_averager.h"

#include <cstddef>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "syncline/dtype.h"
#include "syncline/reduce_op.h"
#include "syncline/status.h"

namespace syncline {
namespace {

// Bytes in one transfer, except for a tensor that has more by itself.
constexpr size_t kEnough = 64 << 20;

absl::Status AverageAll(ProcessGroup& group, const std::vector<Tensor>& tensors) {
  std::map<DType, std::vector<Tensor>> by_dtype;
  for (const Tensor& tensor : tensors) by_dtype[tensor.dtype()].push_back(tensor);
  for (const auto& [dtype, of_dtype] : by_dtype) {
    for (size_t begin = 0, end = 0; begin < of_dtype.size(); begin = end) {
      size_t bytes = 0;
      while (end < of_dtype.size() && bytes < kEnough) bytes += of_dtype[end++].nbytes();
      const std::vector<Tensor> part(of_dtype.begin() + static_cast<std::ptrdiff_t>(begin),
                                     of_dtype.begin() + static_cast<std::ptrdiff_t>(end));
      SYNCLINE_RETURN_IF_ERROR(group.AllReduceCoalesced(part, ReduceOp::kAvg));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<ParameterAverager>> ParameterAverager::Create(
    std::shared_ptr<ProcessGroup> group, int64_t period, int64_t warmup_steps) {
  if (group == nullptr) return ArgumentError("averaging parameters needs a process group");
  if (period < 1) return ArgumentError(absl::StrCat("period must be positive, not ", period));
  if (warmup_steps < 0) {
    return ArgumentError(absl::StrCat("warmup_steps must not be negative, but is ", warmup_steps));
  }
  return std::shared_ptr<ParameterAverager>(
      new ParameterAverager(std::move(group), period, warmup_steps));
}

ParameterAverager::ParameterAverager(std::shared_ptr<ProcessGroup> group, int64_t period,
                                     int64_t warmup_steps)
    : group_(std::move(group)), period_(period), until_next_(warmup_steps) {}

absl::StatusOr<bool> ParameterAverager::Average(const std::vector<Tensor>& parameters) {
  if (until_next_ > 0) {
    --until_next_;
    return false;
  }
  SYNCLINE_RETURN_IF_ERROR(AverageAll(*group_, parameters));
  until_next_ = period_ - 1;
  return true;
}

}  // namespace syncline
