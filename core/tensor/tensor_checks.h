// Checks of the tensors that operations get. `what` names the tensor in the error. Pure functions.
#ifndef SYNCLINE_CORE_TENSOR_TENSOR_CHECKS_H_
#define SYNCLINE_CORE_TENSOR_TENSOR_CHECKS_H_

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "syncline/tensor.h"

namespace syncline::tensor {

// ArgumentError if it is strided.
absl::Status CheckContiguous(const Tensor& tensor, absl::string_view what);

// TypeError if it is read-only.
absl::Status CheckWritable(const Tensor& tensor, absl::string_view what);

// ArgumentError if a written tensor shares memory with any other. The exception: read[i] may be the
// very same memory as written[twin(i)], if that is not kNoTwin. Requires that all are contiguous.
inline constexpr size_t kNoTwin = static_cast<size_t>(-1);
absl::Status CheckApart(
    absl::Span<const Tensor> written, absl::Span<const Tensor> read = {},
    absl::FunctionRef<size_t(size_t i)> twin = [](size_t) { return kNoTwin; });

}  // namespace syncline::tensor

#endif  // SYNCLINE_CORE_TENSOR_TENSOR_CHECKS_H_
