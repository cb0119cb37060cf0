// Which matrices PowerSGD makes of a bucket.
#ifndef SYNCLINE_DDP_HOOKS_POWER_SGD_LAYOUT_H_
#define SYNCLINE_DDP_HOOKS_POWER_SGD_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "ddp/hooks/low_rank.h"
#include "syncline/comm_hook.h"

namespace syncline::ddp {

struct PowerSgdMatrix {
  MatrixShape shape;
  int64_t rank = 0;   // At most as many as it has rows and columns.
  int64_t begin = 0;  // In the bucket. And where its vectors are among those of all:
  int64_t p = 0;      // rank * rows elements,
  int64_t q = 0;      // rank * cols elements.

  int64_t count() const { return shape.rows * shape.cols; }
};

// What goes as it is.
struct PowerSgdPiece {
  int64_t begin = 0;  // In the bucket.
  int64_t count = 0;
};

// All counts are of elements. Pure: equal on all ranks whose buckets are.
struct PowerSgdLayout {
  std::vector<PowerSgdMatrix> matrices;
  std::vector<PowerSgdPiece> rest;
  int64_t p_count = 0;
  int64_t q_count = 0;
  int64_t rest_count = 0;
  int64_t total = 0;  // The bucket's, and what it is filled up with.
};

// A matrix for each parameter that has at least two dimensions and is worth it: see
// PowerSgdOptions.
PowerSgdLayout LayOutParameters(const GradBucket& bucket, int64_t rank,
                                double min_compression_rate);

// The bucket as one square matrix.
PowerSgdLayout LayOutSquare(const GradBucket& bucket, int64_t rank);

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_HOOKS_POWER_SGD_LAYOUT_H_
