// Tensors with known elements of every type.
#ifndef SYNCLINE_TESTS_VALUES_H_
#define SYNCLINE_TESTS_VALUES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "core/dtype.h"
#include "core/reduce_op.h"
#include "core/tensor.h"

namespace syncline {

// `count` elements that differ between ranks: small whole numbers, some of them negative if the
// type has those.
Tensor Numbers(DType dtype, int64_t count, int rank);

// `count` elements of arbitrary bytes (of 0 and 1 for bool) that differ between ranks.
Tensor Bytes(DType dtype, int64_t count, int rank);

// Whether the tensors hold the same bytes.
bool SameBytes(const Tensor& a, const Tensor& b);

// OK if `result` is the reduction of Numbers(...) over ranks 0 to size - 1, computed one element
// after another: exactly for integers, within rounding for floats. Else says where it is not.
absl::Status CheckReduced(const Tensor& result, ReduceOp op, int size);

}  // namespace syncline

#endif  // SYNCLINE_TESTS_VALUES_H_
