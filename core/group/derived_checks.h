// What the operations on lists of tensors ask of them, before they are packed. `what` names a list
// in the error: an ArgumentError, or a TypeError if it is about types or access.
#ifndef SYNCLINE_CORE_GROUP_DERIVED_CHECKS_H_
#define SYNCLINE_CORE_GROUP_DERIVED_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "syncline/tensor.h"

namespace syncline::group {

using Tensors = std::vector<Tensor>;

// At least one tensor; each contiguous, on a device of one type, and writable if that is `needed`.
absl::Status CheckEach(const Tensors& tensors, absl::string_view what, Access needed);

// All tensors of an operation on one device.
absl::Status CheckOneDevice(const Tensors& tensors, absl::string_view what);

// All of one type; all of one type and size.
absl::Status CheckOneType(const Tensors& tensors, absl::string_view what);
absl::Status CheckAllAlike(const Tensors& tensors, absl::string_view what);

// `many` has `each` tensors like each of `few`, on the same device, those of few[0] first.
absl::Status CheckMany(const Tensors& many, absl::string_view many_name, const Tensors& few,
                       absl::string_view few_name, size_t each);

// `root_tensor` is an index of `tensors`.
absl::Status CheckRootTensor(int64_t root_tensor, const Tensors& tensors);

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_DERIVED_CHECKS_H_
