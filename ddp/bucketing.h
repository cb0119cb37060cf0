// Which gradients are reduced together: a pure function.
#ifndef SYNCLINE_DDP_BUCKETING_H_
#define SYNCLINE_DDP_BUCKETING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor/tensor.h"

namespace syncline {

// How large buckets become before they are closed, in bytes. The first one is small, so that
// communication starts early in the backward pass.
struct BucketCaps {
  int64_t first = int64_t{1} << 20;
  int64_t others = int64_t{25} << 20;
  // If not empty, in place of these: the cap of each bucket. The last one holds for all that
  // follow.
  std::vector<int64_t> list = {};
};

// Groups the parameters whose indices are in `order`, the order in which their gradients are
// expected, into buckets of one element type and device each. A bucket is closed once it reaches
// its cap: it may exceed it by less than one parameter. Each element type and device counts its
// buckets for itself. Buckets stand in the order in which their last gradient is expected. Depends
// on nothing but its arguments, so all ranks find the same buckets.
std::vector<std::vector<int64_t>> AssignBuckets(absl::Span<const Tensor> parameters,
                                                absl::Span<const int64_t> order,
                                                const BucketCaps& caps);

}  // namespace syncline

#endif  // SYNCLINE_DDP_BUCKETING_H_
