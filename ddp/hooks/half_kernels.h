// Conversions between float16 or bfloat16 and wider types, vectorised with Highway.
#ifndef SYNCLINE_DDP_HOOKS_HALF_KERNELS_H_
#define SYNCLINE_DDP_HOOKS_HALF_KERNELS_H_

#include <cstddef>

#include "syncline/dtype.h"

namespace syncline::ddp {

// out[i] = in[i] * factor, rounded to nearest even, for i < count. `half` is kFloat16 or kBFloat16,
// the type of `out`; `wide` is kFloat32 or kFloat64, that of `in`. What is too large becomes
// infinity.
void Narrow(DType half, void* out, DType wide, const void* in, double factor, size_t count);

// out[i] = in[i], exactly; the types the other way round.
void Widen(DType wide, void* out, DType half, const void* in, size_t count);

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_HOOKS_HALF_KERNELS_H_
