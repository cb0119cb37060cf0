// Which gradients are reduced together: a pure function.
#ifndef SYNCLINE_DDP_BUCKETING_H_
#define SYNCLINE_DDP_BUCKETING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "syncline/reducer.h"
#include "syncline/tensor.h"

namespace syncline::ddp {

// Groups the parameters whose indices are in `order`, the order in which their gradients are
// expected, into buckets of one element type and device each. A bucket is closed once it reaches
// its cap: it may exceed it by less than one parameter. Each element type and device counts its
// buckets for itself. Buckets stand in the order in which their last gradient is expected. Depends
// on nothing but its arguments, so all ranks find the same buckets.
std::vector<std::vector<int64_t>> AssignBuckets(absl::Span<const Tensor> parameters,
                                                absl::Span<const int64_t> order,
                                                const BucketCaps& caps);

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_BUCKETING_H_
