#include "core/reduce_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/reduce_kernels.cc"
#include "hwy/foreach_target.h"  // Includes this file once for each instruction set.
// Behind foreach_target.h:
#include "core/reduce_kernels-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncline {
namespace HWY_NAMESPACE {

void AccumulateHere(DType dtype, ReduceOp op, void* out, const void* in, size_t count) {
  Run<AccumulateKernel>(dtype, op, out, in, count);
}

void ReduceHere(DType dtype, ReduceOp op, void* out, absl::Span<const void* const> inputs,
                size_t count) {
  const Divider divider = op == ReduceOp::kAvg ? DividerOf(dtype, From::kComputed) : nullptr;
  Run<ReduceKernel>(dtype, op, out, inputs, count, divider);
}

void DivideHere(DType dtype, void* data, int divisor, size_t count) {
  DividerOf(dtype, From::kStored)(data, data, divisor, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace syncline
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace syncline {

HWY_EXPORT(AccumulateHere);
HWY_EXPORT(ReduceHere);
HWY_EXPORT(DivideHere);

void Accumulate(DType dtype, ReduceOp op, void* out, const void* in, size_t count) {
  HWY_DYNAMIC_DISPATCH(AccumulateHere)(dtype, op, out, in, count);
}

void Reduce(DType dtype, ReduceOp op, void* out, absl::Span<const void* const> inputs,
            size_t count) {
  HWY_DYNAMIC_DISPATCH(ReduceHere)(dtype, op, out, inputs, count);
}

void Divide(DType dtype, void* data, int divisor, size_t count) {
  HWY_DYNAMIC_DISPATCH(DivideHere)(dtype, data, divisor, count);
}

}  // namespace syncline

#endif  // HWY_ONCE
