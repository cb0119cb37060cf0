// The arithmetic of reductions, vectorised with Highway and chosen for the CPU at run time.
//
// Pure functions on the caller's buffers, for any thread. All of them require
// CheckReduction(dtype, op).ok() and a type that IsFloat8 does not name: backends whose
// capabilities have those reduce them on devices. Buffers need no alignment. Results do not depend
// on the instruction set that was chosen, except for the sign and payload of a NaN. Integers wrap
// around. min and max are NaN where any input is; of equal elements they take the last. bool is a
// byte of 0 or 1, whose sum is or; complex numbers are pairs of floats.
#ifndef SYNCLINE_CORE_TENSOR_REDUCE_KERNELS_H_
#define SYNCLINE_CORE_TENSOR_REDUCE_KERNELS_H_

#include <cstddef>

#include "absl/types/span.h"
#include "syncline/dtype.h"
#include "syncline/reduce_op.h"

namespace syncline::tensor {

// out[i] = out[i] (op) in[i] for i < count. avg sums: divide by the number of ranks at the end,
// with Divide. premul_sum sums: multiply by the factor before, with Scale. float16 and bfloat16 are
// computed in float32 and rounded to nearest even.
void Accumulate(DType dtype, ReduceOp op, void* out, const void* in, size_t count);

// out[i] = inputs[0][i] (op) inputs[1][i] (op) ... in that order, for i < count; avg divides by
// inputs.size(). float16 and bfloat16 are accumulated in float32 and rounded once. `out` may be
// one of the inputs. Requires at least one input.
void Reduce(DType dtype, ReduceOp op, void* out, absl::Span<const void* const> inputs,
            size_t count);

// data[i] /= divisor for i < count; integers round towards zero. Requires divisor >= 1.
void Divide(DType dtype, void* data, int divisor, size_t count);

// data[i] *= factor for i < count. Requires CheckReduction(dtype, kPremulSum).ok().
void Scale(DType dtype, void* data, double factor, size_t count);

}  // namespace syncline::tensor

#endif  // SYNCLINE_CORE_TENSOR_REDUCE_KERNELS_H_
