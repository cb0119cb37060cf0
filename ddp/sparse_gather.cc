#include "ddp/sparse_gather.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/tensor/reduce_kernels.h"
#include "syncline/check.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::ddp {
namespace {

absl::Status NoRows(int rank, absl::string_view what, int64_t number) {
  return WithRanks(BackendError(absl::StrCat("rank ", rank, " sent ", number, " as ", what,
                                             ": do all ranks run the same version of Syncline?")),
                   {rank});
}

}  // namespace

RowBuffer::RowBuffer(const Tensor& parameter)
    : dtype_(parameter.dtype()), shape_(parameter.shape().begin(), parameter.shape().end()) {
  for (size_t d = 1; d < shape_.size(); ++d) row_elements_ *= shape_[d];
}

absl::Status RowBuffer::Check(const SparseRows& rows) const {
  const auto is_plain = [](const Tensor& tensor) {
    return tensor.is_contiguous() && tensor.device().type == DeviceType::kCpu;
  };
  if (rows.indices.dtype() != DType::kInt64 || rows.indices.shape().size() != 1 ||
      !is_plain(rows.indices)) {
    return ArgumentError(
        absl::StrCat("indices must be contiguous int64[n] on cpu, not ", rows.indices.ToString()));
  }
  const int64_t count = rows.indices.numel();
  std::vector<int64_t> shape = shape_;
  shape[0] = count;
  if (rows.values.dtype() != dtype_ || rows.values.shape() != absl::MakeSpan(shape) ||
      !is_plain(rows.values)) {
    const std::string expected = Tensor(nullptr, dtype_, shape).ToString();
    return ArgumentError(absl::StrCat("values must be contiguous ", expected, ", a row for each ",
                                      "index, not ", rows.values.ToString()));
  }
  const int64_t* const wrong = FindNoRow(rows.indices);
  if (wrong == nullptr) return absl::OkStatus();
  return ArgumentError(
      absl::StrCat("index ", *wrong, " is not a row: there are ", shape_[0], ", from 0"));
}

const int64_t* RowBuffer::FindNoRow(const Tensor& indices) const {
  const int64_t* const begin = indices.data_as<int64_t>();
  const int64_t* const end = begin + indices.numel();
  const int64_t* const found =
      std::find_if(begin, end, [this](int64_t index) { return index < 0 || index >= shape_[0]; });
  return found == end ? nullptr : found;
}

void RowBuffer::Append(const SparseRows& rows) {
  SYNCLINE_DCHECK(Check(rows).ok());
  const int64_t* indices = rows.indices.data_as<int64_t>();
  const char* values = rows.values.data_as<char>();
  indices_.insert(indices_.end(), indices, indices + rows.indices.numel());
  values_.insert(values_.end(), values, values + rows.values.nbytes());
}

void RowBuffer::Clear() {
  indices_.clear();
  values_.clear();
}

SparseRows RowBuffer::rows() {
  std::vector<int64_t> shape = shape_;
  shape[0] = count();
  return {Tensor::Of(indices_), Tensor(values_.data(), dtype_, shape)};
}

absl::StatusOr<SparseRows> RowBuffer::Make(int64_t count) const {
  std::vector<int64_t> shape = shape_;
  shape[0] = count;
  SparseRows rows;
  SYNCLINE_ASSIGN_OR_RETURN(rows.indices, Tensor::TryZeros(DType::kInt64, {count}));
  SYNCLINE_ASSIGN_OR_RETURN(rows.values, Tensor::TryZeros(dtype_, shape));
  return rows;
}

absl::StatusOr<SparseRows> GatherRows(ProcessGroup& group, RowBuffer& mine, int64_t divisor) {
  std::vector<int64_t> counts(group.size());
  counts[group.rank()] = mine.count();
  const Tensor all_counts = Tensor::Of(counts);
  std::vector<Tensor> counts_by_rank;
  for (int rank = 0; rank < group.size(); ++rank)
    counts_by_rank.push_back(all_counts.Slice(rank, 1));
  SYNCLINE_RETURN_IF_ERROR(group.AllGather(counts_by_rank, counts_by_rank[group.rank()]));

  // What others send is used as sizes and indices. No sum of these overflows.
  const auto most = std::numeric_limits<int64_t>::max() /
                    (group.size() * static_cast<int64_t>(mine.bytes_per_row()));
  for (int rank = 0; rank < group.size(); ++rank) {
    if (counts[rank] < 0 || counts[rank] > most) {
      return NoRows(rank, "its number of rows", counts[rank]);
    }
  }
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  SYNCLINE_ASSIGN_OR_RETURN(const SparseRows all, mine.Make(total));
  if (total == 0) return all;
  const int64_t per_row = all.values.numel() / total;
  std::vector<Tensor> indices, values;
  int64_t first = 0;
  for (int64_t count : counts) {
    indices.push_back(all.indices.Slice(first, count));
    values.push_back(all.values.Slice(first * per_row, count * per_row));
    first += count;
  }
  const SparseRows own = mine.rows();
  SYNCLINE_RETURN_IF_ERROR(group.AllGather(indices, own.indices));
  for (int rank = 0; rank < group.size(); ++rank) {
    const int64_t* const wrong = mine.FindNoRow(indices[rank]);
    if (wrong != nullptr) return NoRows(rank, "the index of a row", *wrong);
  }
  SYNCLINE_RETURN_IF_ERROR(group.AllGather(values, own.values));
  tensor::Divide(all.values.dtype(), all.values.data(), static_cast<int>(divisor),
                 all.values.numel());
  return all;
}

}  // namespace syncline::ddp
