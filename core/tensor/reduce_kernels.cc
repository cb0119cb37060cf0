#include "core/tensor/reduce_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/tensor/reduce_kernels.cc"
#include "hwy/foreach_target.h"  // Includes this file once for each instruction set.
// Behind hwy/foreach_target.h:
#include "core/tensor/reduce_kernels-inl.h"
#include "hwy/highway.h"
#include "syncline/check.h"

HWY_BEFORE_NAMESPACE();
namespace syncline::tensor {
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

void ScaleHere(DType dtype, void* data, double factor, size_t count) {
  ScaleElements(dtype, data, factor, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace syncline::tensor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace syncline::tensor {

HWY_EXPORT(AccumulateHere);
HWY_EXPORT(ReduceHere);
HWY_EXPORT(DivideHere);
HWY_EXPORT(ScaleHere);

namespace {

// The same reduction of types and operations that the kernels know: a bool is a byte of 0 or 1, a
// complex number two floats.
struct Lowered {
  Lowered(DType given_dtype, ReduceOp given_op, size_t given_count)
      : dtype(given_dtype), op(given_op), count(given_count) {
    if (op == ReduceOp::kPremulSum) op = ReduceOp::kSum;
    if (dtype == DType::kBool) {
      dtype = DType::kUInt8;
      if (op == ReduceOp::kSum) op = ReduceOp::kBor;
    } else if (dtype == DType::kComplex64 || dtype == DType::kComplex128) {
      dtype = dtype == DType::kComplex64 ? DType::kFloat32 : DType::kFloat64;
      count *= 2;
    }
  }

  DType dtype;
  ReduceOp op;
  size_t count;
};

}  // namespace

void Accumulate(DType dtype, ReduceOp op, void* out, const void* in, size_t count) {
  SYNCLINE_DCHECK(CheckReduction(dtype, op).ok() && !IsFloat8(dtype));
  const Lowered lowered(dtype, op, count);
  HWY_DYNAMIC_DISPATCH(AccumulateHere)(lowered.dtype, lowered.op, out, in, lowered.count);
}

void Reduce(DType dtype, ReduceOp op, void* out, absl::Span<const void* const> inputs,
            size_t count) {
  SYNCLINE_DCHECK(!inputs.empty() && CheckReduction(dtype, op).ok() && !IsFloat8(dtype));
  const Lowered lowered(dtype, op, count);
  HWY_DYNAMIC_DISPATCH(ReduceHere)(lowered.dtype, lowered.op, out, inputs, lowered.count);
}

void Divide(DType dtype, void* data, int divisor, size_t count) {
  SYNCLINE_DCHECK(divisor >= 1 && !IsFloat8(dtype));
  const Lowered lowered(dtype, ReduceOp::kAvg, count);
  HWY_DYNAMIC_DISPATCH(DivideHere)(lowered.dtype, data, divisor, lowered.count);
}

void Scale(DType dtype, void* data, double factor, size_t count) {
  SYNCLINE_DCHECK(CheckReduction(dtype, ReduceOp::kPremulSum).ok() && !IsFloat8(dtype));
  const Lowered lowered(dtype, ReduceOp::kPremulSum, count);
  HWY_DYNAMIC_DISPATCH(ScaleHere)(lowered.dtype, data, factor, lowered.count);
}

}  // namespace syncline::tensor

#endif  // HWY_ONCE
