#include "core/tensor/tensor_checks.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "syncline/check.h"
#include "syncline/status.h"

namespace syncline::tensor {
namespace {

const std::byte* Begin(const Tensor& t) { return static_cast<const std::byte*>(t.data()); }
const std::byte* End(const Tensor& t) { return Begin(t) + t.nbytes(); }

bool IsSameMemory(const Tensor& a, const Tensor& b) {
  return a.data() == b.data() && a.nbytes() == b.nbytes();
}

bool AreContiguous(absl::Span<const Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const Tensor& tensor) { return tensor.is_contiguous(); });
}

// Whether it is plain that all are apart, which it mostly is: `written` one behind the other, and
// `read` before or behind all of them.
bool IsPlain(absl::Span<const Tensor> written, absl::Span<const Tensor> read) {
  const std::byte *begin = nullptr, *end = nullptr;
  for (const Tensor& tensor : written) {
    if (tensor.numel() == 0) continue;
    if (begin == nullptr) begin = Begin(tensor);
    if (Begin(tensor) < end) return false;
    end = End(tensor);
  }
  return std::all_of(read.begin(), read.end(), [&](const Tensor& tensor) {
    return tensor.numel() == 0 || Begin(tensor) >= end || End(tensor) <= begin;
  });
}

}  // namespace

absl::Status CheckContiguous(const Tensor& tensor, absl::string_view what) {
  if (tensor.is_contiguous()) return absl::OkStatus();
  return ArgumentError(absl::StrCat(what, " is not contiguous (", tensor.ToString(),
                                    "): pass a contiguous copy; in Python "
                                    "numpy.ascontiguousarray(x) or x.contiguous() makes one"));
}

absl::Status CheckWritable(const Tensor& tensor, absl::string_view what) {
  if (tensor.access() == Access::kReadWrite) return absl::OkStatus();
  return TypeError(absl::StrCat(what, " is read-only (", tensor.ToString(),
                                ") but would be written: pass a writable copy"));
}

absl::Status CheckApart(absl::Span<const Tensor> written, absl::Span<const Tensor> read,
                        absl::FunctionRef<size_t(size_t i)> twin) {
  SYNCLINE_DCHECK(AreContiguous(written) && AreContiguous(read));
  if (IsPlain(written, read)) return absl::OkStatus();
  absl::InlinedVector<const Tensor*, 16> sorted;
  for (const Tensor& tensor : written) {
    if (tensor.nbytes() > 0) sorted.push_back(&tensor);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Tensor* a, const Tensor* b) { return Begin(*a) < Begin(*b); });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (Begin(*sorted[i]) < End(*sorted[i - 1])) {
      return ArgumentError("two of the outputs share memory: give each its own");
    }
  }
  for (size_t i = 0; i < read.size(); ++i) {
    const Tensor& tensor = read[i];
    if (tensor.nbytes() == 0) continue;
    const size_t own = twin(i);
    auto it = std::upper_bound(sorted.begin(), sorted.end(), Begin(tensor),
                               [](const std::byte* at, const Tensor* t) { return at < End(*t); });
    for (; it != sorted.end() && Begin(**it) < End(tensor); ++it) {
      if (own != kNoTwin && *it == &written[own] && IsSameMemory(tensor, **it)) continue;
      return ArgumentError(
          "an input shares memory with an output: only this rank's own part may be the same "
          "memory on both sides");
    }
  }
  return absl::OkStatus();
}

}  // namespace syncline::tensor
