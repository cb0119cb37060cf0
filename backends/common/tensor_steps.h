// Small steps on tensors that several backends are made of. All functions are thread-safe, own
// nothing and cannot fail.
#ifndef SYNCLINE_BACKENDS_COMMON_TENSOR_STEPS_H_
#define SYNCLINE_BACKENDS_COMMON_TENSOR_STEPS_H_

#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::backends {

// Copies all elements; nothing if both tensors are the same memory. Requires equal sizes and types,
// and memory that is the same or does not overlap.
void CopyElements(const Tensor& from, const Tensor& to);

// The operation for a part of the ranks. kAvg accumulates as kSum; the division happens once, after
// the last step.
ReduceOp PartialOp(ReduceOp op);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_TENSOR_STEPS_H_
