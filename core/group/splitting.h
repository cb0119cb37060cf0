// One tensor as the parts that its ranks have in it.
#ifndef SYNCLINE_CORE_GROUP_SPLITTING_H_
#define SYNCLINE_CORE_GROUP_SPLITTING_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "syncline/tensor.h"

namespace syncline::group {

using Parts = absl::InlinedVector<Tensor, 4>;  // Views.

// Sets `parts` to `whole` in `size` equal ones, each with as many elements as `part`. ArgumentError
// if it has others.
absl::Status SplitEqually(const Tensor& whole, absl::string_view whole_name, const Tensor& part,
                          absl::string_view part_name, int size, Parts& parts);

// Sets `parts` to `whole` along its first dimension, in as many as `splits` says; without splits,
// in `size` equal ones. ArgumentError if these do not fit.
absl::Status SplitRows(const Tensor& whole, absl::string_view name,
                       absl::Span<const int64_t> splits, int size, Parts& parts);

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_SPLITTING_H_
