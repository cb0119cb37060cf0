#include "backends/common/tensor_steps.h"

#include <cstdint>
#include <cstring>

namespace syncline {

std::vector<Tensor> SplitEvenly(const Tensor& tensor, int parts) {
  std::vector<Tensor> slices;
  slices.reserve(parts);
  const int64_t quotient = tensor.numel() / parts, remainder = tensor.numel() % parts;
  int64_t offset = 0;
  for (int part = 0; part < parts; ++part) {
    const int64_t count = quotient + (part < remainder ? 1 : 0);
    slices.push_back(tensor.Slice(offset, count));
    offset += count;
  }
  return slices;
}

void CopyElements(const Tensor& from, const Tensor& to) {
  if (from.numel() == 0 || from.data() == to.data()) return;
  std::memcpy(to.data(), from.data(), from.nbytes());
}

ReduceOp PartialOp(ReduceOp op) { return op == ReduceOp::kAvg ? ReduceOp::kSum : op; }

}  // namespace syncline
