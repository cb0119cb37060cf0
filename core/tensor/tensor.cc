#include "syncline/tensor.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/tensor/memory.h"
#include "syncline/status.h"

namespace syncline {
namespace {

constexpr std::align_val_t kAlignment{64};

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "syncline: Tensor: %s\n", what);
  std::abort();
}

// For callers that broke a "Requires".
inline void Require(bool condition, const char* what) {
  if (!condition) Fail(what);
}

int64_t NumberOfElements(DType dtype, absl::Span<const int64_t> shape) {
  const absl::Status status = CheckShape(dtype, shape);
  if (!status.ok()) Fail(std::string(status.message()).c_str());
  int64_t numel = 1;
  if (std::count(shape.begin(), shape.end(), 0) != 0) return 0;
  for (const int64_t dimension : shape) numel *= dimension;
  return numel;
}

// A tensor of at least so many bytes is worth a look at how many there are: Linux promises more,
// and kills the process that then uses it.
constexpr size_t kLarge = 16 << 20;

// As NumPy has it: the strides of dimensions of size 1 are never used, and without elements no
// stride is.
bool IsRowMajor(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides, int64_t numel) {
  if (numel == 0) return true;
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

}  // namespace

absl::Status CheckShape(DType dtype, absl::Span<const int64_t> shape) {
  // Dimensions of size 0 count as 1 here, so that strides cannot overflow either.
  int64_t bytes = static_cast<int64_t>(SizeOf(dtype));
  for (const int64_t dimension : shape) {
    if (dimension < 0) {
      return ArgumentError(absl::StrCat("shape [", absl::StrJoin(shape, ", "),
                                        "] has a negative dimension; dimensions are 0 or more"));
    }
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(dimension, 1), &bytes)) {
      return ArgumentError(absl::StrCat(Name(dtype), "[", absl::StrJoin(shape, ", "),
                                        "] is larger than the address space; check the shape"));
    }
  }
  return absl::OkStatus();
}

Tensor::Tensor(void* data, DType dtype, absl::Span<const int64_t> shape,
               absl::Span<const int64_t> strides, Device device, std::shared_ptr<void> owner,
               Access access)
    : data_(data),
      dtype_(dtype),
      shape_(shape.begin(), shape.end()),
      strides_(strides.begin(), strides.end()),
      device_(device),
      owner_(std::move(owner)),
      access_(access),
      numel_(NumberOfElements(dtype_, shape_)) {
  if (strides_.empty()) return;
  Require(strides_.size() == shape_.size(), "there must be one stride for each dimension");
  contiguous_ = IsRowMajor(shape_, strides_, numel_);
}

std::vector<int64_t> Tensor::strides() const {
  if (!strides_.empty()) return {strides_.begin(), strides_.end()};
  std::vector<int64_t> strides(shape_.size());
  int64_t stride = 1;
  for (size_t i = shape_.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape_[i], 1);
  }
  return strides;
}

absl::StatusOr<Tensor> Tensor::TryZeros(DType dtype, absl::Span<const int64_t> shape) {
  const size_t size = static_cast<size_t>(NumberOfElements(dtype, shape)) * SizeOf(dtype);
  const bool fits = size < kLarge || size <= tensor::LargestMemory().available;
  void* const data = fits ? ::operator new(size, kAlignment, std::nothrow) : nullptr;
  if (data == nullptr) {
    const tensor::MemoryBudget memory = tensor::LargestMemory();
    return BackendError(absl::StrCat("out of memory: cannot get ", size, " bytes for a tensor ",
                                     Name(dtype), "[", absl::StrJoin(shape, ", "), "]; ",
                                     memory.owner, " has ", memory.available));
  }
  std::shared_ptr<void> memory(data, [](void* p) { ::operator delete(p, kAlignment); });
  if (size > 0) std::memset(data, 0, size);
  return Tensor(data, dtype, shape, {}, Device(), std::move(memory));
}

Tensor Tensor::Zeros(DType dtype, absl::Span<const int64_t> shape) {
  absl::StatusOr<Tensor> zeros = TryZeros(dtype, shape);
  if (!zeros.ok()) throw std::bad_alloc();
  return *std::move(zeros);
}

void Tensor::FailToSlice() const {
  Require(contiguous_, "Slice needs a contiguous tensor");
  Fail("Slice beyond the end");
}

Tensor Tensor::Reshape(absl::Span<const int64_t> shape) const {
  Require(contiguous_, "Reshape needs a contiguous tensor");
  Tensor reshaped(data_, dtype_, shape, {}, device_, owner_, access_);
  Require(reshaped.numel_ == numel_, "Reshape to another number of elements");
  return reshaped;
}

std::vector<Tensor> Tensor::SplitEvenly(int parts) const {
  Require(parts >= 1, "SplitEvenly needs at least one part");
  std::vector<Tensor> slices;
  slices.reserve(parts);
  const int64_t each = numel_ / parts;
  const int64_t left_over = numel_ % parts;
  int64_t offset = 0;
  for (int part = 0; part < parts; ++part) {
    const int64_t count = each + (part < left_over ? 1 : 0);
    slices.push_back(Slice(offset, count));
    offset += count;
  }
  return slices;
}

std::string Tensor::ToString() const {
  return absl::StrCat(Name(dtype_), "[", absl::StrJoin(shape_, ", "), "] on ",
                      syncline::ToString(device_));
}

}  // namespace syncline
