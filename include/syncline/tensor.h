// Tensor: a view of an n-dimensional array, as NumPy's and torch's are, which may keep it alive.
#ifndef SYNCLINE_TENSOR_H_
#define SYNCLINE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "syncline/device.h"
#include "syncline/dtype.h"

namespace syncline {

namespace group {
class Parts;
}  // namespace group

// Whether operations may write to a tensor's bytes.
enum class Access { kReadWrite, kReadOnly };

// OK if a tensor can have this shape: no dimension is negative, and its size in bytes fits in an
// int64_t. {} is the shape of a single element. ArgumentError otherwise.
absl::Status CheckShape(DType dtype, absl::Span<const int64_t> shape);

// A typed, strided view of memory. Copying a Tensor copies the view, never the elements; `owner`
// keeps the memory alive for as long as any copy of the view lives, and without one the caller
// does. Not synchronised: as with a pointer, callers that share the elements between threads order
// the accesses. A violated "Requires" ends the process; errors that users can cause are a Status.
//
//   std::vector<float> values = {1, 2, 3, 4};
//   const Tensor whole = Tensor::Of(values);           // A view of the vector.
//   const Tensor half = whole.Slice(2, 2);             // A view of 3, 4.
//   half.data_as<float>()[0] = 5;                      // values[2] is 5.
//   SYNCLINE_ASSIGN_OR_RETURN(const Tensor zeros, Tensor::TryZeros(DType::kFloat32, {2, 3}));
class Tensor {
 public:
  // No elements, no memory: the state of a tensor that is not assigned yet. A moved-from tensor is
  // good for being assigned to or destroyed.
  Tensor() = default;

  // A view of `data`. `strides` are in elements; empty means row-major contiguous. Requires
  // CheckShape(dtype, shape).ok().
  Tensor(void* data, DType dtype, absl::Span<const int64_t> shape,
         absl::Span<const int64_t> strides = {}, Device device = {},
         std::shared_ptr<void> owner = nullptr, Access access = Access::kReadWrite);

  // A new tensor on the CPU, 64-byte aligned, elements zero. Requires as above. Where there is no
  // memory for it, TryZeros is a BackendError that says how much was asked for, and Zeros throws
  // std::bad_alloc.
  static absl::StatusOr<Tensor> TryZeros(DType dtype, absl::Span<const int64_t> shape);
  static Tensor Zeros(DType dtype, absl::Span<const int64_t> shape);

  // A view of `values`, one-dimensional. The vector must outlive it.
  template <typename T>
  static Tensor Of(std::vector<T>& values);

  void* data() const { return data_; }
  template <typename T>
  T* data_as() const {
    return static_cast<T*>(data_);
  }
  DType dtype() const { return dtype_; }
  absl::Span<const int64_t> shape() const { return shape_; }
  std::vector<int64_t> strides() const;  // In elements.
  const Device& device() const { return device_; }
  const std::shared_ptr<void>& owner() const { return owner_; }
  Access access() const { return access_; }

  int64_t numel() const { return numel_; }
  size_t nbytes() const { return static_cast<size_t>(numel_) * SizeOf(dtype_); }
  bool is_contiguous() const { return contiguous_; }  // Row-major, without gaps.

  // `count` elements from `offset` on, as a one-dimensional view with the same owner.
  // Requires is_contiguous() and offset + count <= numel().
  Tensor Slice(int64_t offset, int64_t count) const {
    return Tensor(*this, CheckedOffset(offset, count), count, owner_);
  }

  // The same elements under another shape. Requires is_contiguous() and as many elements.
  Tensor Reshape(absl::Span<const int64_t> shape) const;
  // `parts` slices in order, whose sizes differ by at most one: the first ones get the elements
  // that are left over. Requires is_contiguous() and parts >= 1.
  std::vector<Tensor> SplitEvenly(int parts) const;

  // "float32[2, 3] on cpu", for messages.
  std::string ToString() const;

 private:
  // Copying a tensor of few dimensions allocates nothing.
  using Extents = absl::InlinedVector<int64_t, 4>;

  friend class group::Parts;

  // Slice without an owner: for a view that does not outlive this tensor. To count one more owner
  // takes as long as the rest of it.
  Tensor SliceWithoutOwner(int64_t offset, int64_t count) const {
    return Tensor(*this, CheckedOffset(offset, count), count, nullptr);
  }
  // The state of Slice.
  Tensor(const Tensor& whole, int64_t offset, int64_t count, std::shared_ptr<void> owner)
      : data_(whole.data_ == nullptr
                  ? nullptr
                  : whole.data_as<char>() + static_cast<size_t>(offset) * SizeOf(whole.dtype_)),
        dtype_(whole.dtype_),
        shape_(1, count),
        device_(whole.device_),
        owner_(std::move(owner)),
        access_(whole.access_),
        numel_(count) {}
  // `offset`, if Slice may be called with these. Ends the process if not.
  int64_t CheckedOffset(int64_t offset, int64_t count) const {
    const bool is_inside = offset >= 0 && count >= 0 && count <= numel_ && offset <= numel_ - count;
    if (ABSL_PREDICT_FALSE(!contiguous_ || !is_inside)) FailToSlice();
    return offset;
  }
  [[noreturn]] void FailToSlice() const;

  void* data_ = nullptr;
  DType dtype_ = DType::kUInt8;
  Extents shape_ = Extents(1, 0);
  Extents strides_;  // Empty: row-major.
  Device device_;
  std::shared_ptr<void> owner_;
  Access access_ = Access::kReadWrite;
  int64_t numel_ = 0;
  bool contiguous_ = true;
};

// The element type of a C++ type.
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kInt8;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType value = DType::kInt16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kInt64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kUInt8;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::kUInt16;
};
template <>
struct DTypeOf<uint32_t> {
  static constexpr DType value = DType::kUInt32;
};
template <>
struct DTypeOf<uint64_t> {
  static constexpr DType value = DType::kUInt64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kFloat64;
};

template <typename T>
Tensor Tensor::Of(std::vector<T>& values) {
  return Tensor(values.data(), DTypeOf<T>::value, {static_cast<int64_t>(values.size())});
}

}  // namespace syncline

#endif  // SYNCLINE_TENSOR_H_
