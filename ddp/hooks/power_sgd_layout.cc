#include "ddp/hooks/power_sgd_layout.h"

#include <algorithm>
#include <cmath>

#include "syncline/dtype.h"

namespace syncline::ddp {
namespace {

void AddMatrix(PowerSgdLayout& layout, MatrixShape shape, int64_t rank, int64_t begin) {
  PowerSgdMatrix matrix;
  matrix.shape = shape;
  matrix.rank = std::min({rank, shape.rows, shape.cols});
  matrix.begin = begin;
  matrix.p = layout.p_count;
  matrix.q = layout.q_count;
  layout.p_count += matrix.rank * shape.rows;
  layout.q_count += matrix.rank * shape.cols;
  layout.matrices.push_back(matrix);
}

}  // namespace

PowerSgdLayout LayOutParameters(const GradBucket& bucket, int64_t rank,
                                double min_compression_rate) {
  PowerSgdLayout layout;
  layout.total = bucket.buffer.numel();
  int64_t begin = 0;
  for (const Tensor& gradient : bucket.gradients) {
    const int64_t count = gradient.numel();
    MatrixShape shape;
    if (gradient.shape().size() >= 2 && count > 0) {
      shape.rows = gradient.shape()[0];
      shape.cols = count / shape.rows;
    }
    const auto compressed = static_cast<double>((shape.rows + shape.cols) * rank);
    if (count > 0 && shape.rows > 0 &&
        compressed * min_compression_rate < static_cast<double>(count)) {
      AddMatrix(layout, shape, rank, begin);
    } else if (count > 0) {
      layout.rest.push_back({begin, count});
      layout.rest_count += count;
    }
    begin += count;
  }
  return layout;
}

PowerSgdLayout LayOutSquare(const GradBucket& bucket, int64_t rank) {
  PowerSgdLayout layout;
  const int64_t count = bucket.buffer.numel();
  auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(count)));
  while (side * side < count) ++side;
  layout.total = side * side;
  AddMatrix(layout, {side, side}, rank, 0);
  return layout;
}

}  // namespace syncline::ddp
