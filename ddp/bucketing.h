// Which gradients are reduced together: a pure function.
#ifndef SYNCLINE_DDP_BUCKETING_H_
#define SYNCLINE_DDP_BUCKETING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor.h"

namespace syncline {

// How large buckets become before they are closed, in bytes. The first one is small, so that
// communication starts early in the backward pass.
struct BucketCaps {
  int64_t first = int64_t{1} << 20;
  int64_t others = int64_t{25} << 20;
};

// Groups `parameters`, given in the order of their registration, into buckets of one element type
// and device each. Backward passes make gradients in about the reverse of that order, so buckets
// and their contents run from the last parameter to the first. A bucket is closed once it reaches
// its cap: it may exceed it by less than one parameter. Each element type and device has a first
// bucket of its own. Depends on nothing but its arguments, so all ranks find the same buckets.
std::vector<std::vector<int64_t>> AssignBuckets(absl::Span<const Tensor> parameters,
                                                const BucketCaps& caps);

}  // namespace syncline

#endif  // SYNCLINE_DDP_BUCKETING_H_
