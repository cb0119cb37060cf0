// Reductions over the element types of NCCL.
#ifndef SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_ELEMENTS_H_
#define SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_ELEMENTS_H_

#include <cstddef>
#include <vector>

#include "backends/nccl/nccl_api.h"

namespace fake_nccl {

// Bytes of an element; 0 for a value that is none of NcclDataType's.
size_t SizeOf(syncline::nccl::NcclDataType dtype);

// to[i] = inputs[0][i] op inputs[1][i] ..., in this order, for a built-in operation. Integers wrap
// around, and their average is the quotient of the wrapped sum. Floating types narrower than float
// are computed in float and rounded once, to nearest even; eight-bit ones become their largest
// number where they overflow, as CUDA's conversions make them. `to` may be one of the inputs.
void Reduce(syncline::nccl::NcclDataType dtype, syncline::nccl::NcclRedOp op, void* to,
            const std::vector<const void*>& inputs, size_t count);

// to[i] = from[i] * *scalar, an element too. `to` may be `from`.
void Scale(syncline::nccl::NcclDataType dtype, const void* scalar, void* to, const void* from,
           size_t count);

// One element as a number, and back: for floating types. For tests too.
double ToDouble(syncline::nccl::NcclDataType dtype, const void* element);
void FromDouble(syncline::nccl::NcclDataType dtype, double value, void* element);

}  // namespace fake_nccl

#endif  // SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_ELEMENTS_H_
