// The memory of buckets, and where in it each gradient lies.
#ifndef SYNCLINE_DDP_BUCKET_LAYOUT_H_
#define SYNCLINE_DDP_BUCKET_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "syncline/tensor.h"

namespace syncline::ddp {

struct BucketLayout {
  std::vector<std::vector<int64_t>> buckets;  // The parameters of each.
  std::vector<Tensor> flats;                  // By bucket.
  std::vector<Tensor> gradients;              // By parameter: views of `flats`.
  std::vector<int64_t> bucket_of;             // By parameter; -1: it is in none.
};

// Allocates `buckets`, for gradients like `parameters`: zeros, or, on the parameters' device, any
// values. BackendError if there is no memory.
absl::StatusOr<BucketLayout> Allocate(std::vector<std::vector<int64_t>> buckets,
                                      const std::vector<Tensor>& parameters);

// Sets the elements, which are in memory of the host, to zero.
void Clear(const Tensor& tensor);

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_BUCKET_LAYOUT_H_
