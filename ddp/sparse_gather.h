// Sparse gradients: each rank has some of the rows.
#ifndef SYNCLINE_DDP_SPARSE_GATHER_H_
#define SYNCLINE_DDP_SPARSE_GATHER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "syncline/process_group.h"
#include "syncline/reducer.h"
#include "syncline/tensor.h"

namespace syncline::ddp {

// Rows that this rank owns, collected one part after another.
class RowBuffer {
 public:
  // For gradients like `parameter`, which has at least one dimension.
  explicit RowBuffer(const Tensor& parameter);

  // OK if `rows` are rows of the parameter; else an ArgumentError that says what is wrong.
  absl::Status Check(const SparseRows& rows) const;
  // The first of `indices`, contiguous int64[n] on cpu, that is no row of the parameter; null if
  // all are.
  const int64_t* FindNoRow(const Tensor& indices) const;
  // Requires Check(rows).ok(). Copies them.
  void Append(const SparseRows& rows);
  void Clear();

  int64_t count() const { return static_cast<int64_t>(indices_.size()); }
  // Views, until the next change.
  SparseRows rows();
  // `count` new rows.
  absl::StatusOr<SparseRows> Make(int64_t count) const;
  size_t bytes_per_row() const { return sizeof(int64_t) + row_elements_ * SizeOf(dtype_); }

 private:
  DType dtype_;
  std::vector<int64_t> shape_;  // Of the parameter.
  int64_t row_elements_ = 1;
  std::vector<int64_t> indices_;
  std::vector<char> values_;
};

// Collective. All ranks' rows in the order of ranks, values divided by `divisor`, for which
// 0 < divisor < 2^31. A rank that sends what are no rows is an error that names it.
absl::StatusOr<SparseRows> GatherRows(ProcessGroup& group, RowBuffer& mine, int64_t divisor);

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_SPARSE_GATHER_H_
