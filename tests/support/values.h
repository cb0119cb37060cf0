// Tensors with known elements of every type, and what reductions of them must give: computed one
// element after another, independently of the kernels.
#ifndef SYNCLINE_TESTS_SUPPORT_VALUES_H_
#define SYNCLINE_TESTS_SUPPORT_VALUES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "syncline/dtype.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline {

// `count` elements that differ with `seed`. Floats use all bits of their mantissa, so that sums and
// products of them are rounded, and depend on the order; integers are small. Some are negative if
// the type has that.
Tensor Numbers(DType dtype, int64_t count, int seed);

// `count` elements of arbitrary bytes (of 0 and 1 for bool) that differ with `seed`.
Tensor Bytes(DType dtype, int64_t count, int seed);

// Whether the tensors hold the same bytes.
bool SameBytes(const Tensor& a, const Tensor& b);

// A number that differs, in all likelihood, if the bytes do.
uint64_t Fingerprint(const Tensor& tensor);

// OK if `result` is the reduction, in whatever order, of Numbers(..., seed) for all `seeds`, each
// multiplied by its factor if there are any: exactly for integers and bool, within rounding for
// floats. Else says where it is not.
absl::Status CheckReduced(const Tensor& result, ReduceOp op, absl::Span<const int> seeds,
                          absl::Span<const double> factors = {});

// 0, 1, ... size - 1.
std::vector<int> Upto(int size);

}  // namespace syncline

#endif  // SYNCLINE_TESTS_SUPPORT_VALUES_H_
