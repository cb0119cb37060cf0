#include "core/group/splitting.h"

#include "absl/strings/str_cat.h"
#include "core/tensor/tensor_checks.h"
#include "syncline/status.h"

namespace syncline::group {

absl::Status SplitEqually(const Tensor& whole, absl::string_view whole_name, const Tensor& part,
                          absl::string_view part_name, int size, Parts& parts) {
  if (!whole.is_contiguous())
    return tensor::CheckContiguous(whole, absl::StrCat("the ", whole_name));
  if (!part.is_contiguous()) return tensor::CheckContiguous(part, absl::StrCat("the ", part_name));
  int64_t numel = 0;
  if (__builtin_mul_overflow(part.numel(), int64_t{size}, &numel) || whole.numel() != numel) {
    return ArgumentError(absl::StrCat("the ", whole_name, " is ", whole.ToString(), " but the ",
                                      part_name, " is ", part.ToString(), ": the ", whole_name,
                                      " must have ", size, " times its elements"));
  }
  parts.AddEach(whole, part.numel(), size);
  return absl::OkStatus();
}

absl::Status SplitRows(const Tensor& whole, absl::string_view name,
                       absl::Span<const int64_t> splits, int size, Parts& parts) {
  if (!whole.is_contiguous()) return tensor::CheckContiguous(whole, absl::StrCat("the ", name));
  const int64_t rows = whole.shape().empty() ? whole.numel() : whole.shape()[0];
  const int64_t even = rows / size;
  if (splits.empty() && even * size != rows) {
    return ArgumentError(absl::StrCat("the ", name, " is ", whole.ToString(), ", whose first ",
                                      "dimension cannot be split equally between ", size,
                                      " ranks: pass ", name, "_splits"));
  }
  if (!splits.empty() && splits.size() != static_cast<size_t>(size)) {
    return ArgumentError(absl::StrCat(name, "_splits needs one number for each of the ", size,
                                      " ranks, not ", splits.size()));
  }
  const int64_t row = whole.shape().size() <= 1 || rows == 0 ? 1 : whole.numel() / rows;
  if (splits.empty()) {
    parts.AddEach(whole, even * row, size);
    return absl::OkStatus();
  }
  int64_t at = 0;
  for (const int64_t split : splits) {
    if (split < 0 || split > rows - at) {
      return ArgumentError(absl::StrCat(name, "_splits must be 0 or more and add up to ", rows,
                                        ", the first dimension of ", whole.ToString()));
    }
    parts.Add(whole, at * row, split * row);
    at += split;
  }
  if (at != rows) {
    return ArgumentError(absl::StrCat(name, "_splits add up to ", at,
                                      ", but the first dimension of ", whole.ToString(), " is ",
                                      rows));
  }
  return absl::OkStatus();
}

}  // namespace syncline::group
