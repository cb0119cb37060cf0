#include "syncline/dlpack.h"

#include <dlpack/dlpack.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "syncline/status.h"

namespace syncline {
namespace {

// Since DLPack 0.8 and 1.1; the header that we build with may be older than the producer's.
constexpr uint8_t kBoolCode = 6;
constexpr uint8_t kFloat8E4M3Code = 10;
constexpr uint8_t kFloat8E5M2Code = 12;

// What DLPack calls each element type: {code, bits}.
struct Row {
  DType dtype;
  uint8_t code;
  uint8_t bits;
};

constexpr Row kRows[] = {
    {DType::kBool, kBoolCode, 8},
    {DType::kInt8, kDLInt, 8},
    {DType::kInt16, kDLInt, 16},
    {DType::kInt32, kDLInt, 32},
    {DType::kInt64, kDLInt, 64},
    {DType::kUInt8, kDLUInt, 8},
    {DType::kUInt16, kDLUInt, 16},
    {DType::kUInt32, kDLUInt, 32},
    {DType::kUInt64, kDLUInt, 64},
    {DType::kFloat16, kDLFloat, 16},
    {DType::kBFloat16, kDLBfloat, 16},
    {DType::kFloat32, kDLFloat, 32},
    {DType::kFloat64, kDLFloat, 64},
    {DType::kComplex64, kDLComplex, 64},
    {DType::kComplex128, kDLComplex, 128},
    {DType::kFloat8E4M3, kFloat8E4M3Code, 8},
    {DType::kFloat8E5M2, kFloat8E5M2Code, 8},
};

absl::StatusOr<DType> FromDLDataType(const DLDataType& type) {
  for (const Row& row : kRows) {
    if (type.lanes == 1 && type.code == row.code && type.bits == row.bits) return row.dtype;
  }
  return ArgumentError(absl::StrCat("DLPack element type (code ", type.code, ", ", type.bits,
                                    " bits, ", type.lanes,
                                    " lanes) is not known; convert the array to one of: bool, "
                                    "int8...uint64, float16, bfloat16, float32, float64, "
                                    "complex64, complex128, float8_e4m3fn, float8_e5m2"));
}

DLDataType ToDLDataType(DType dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return {row.code, row.bits, 1};
  }
  return {kDLOpaqueHandle, 0, 0};
}

absl::StatusOr<Device> FromDLDevice(const DLDevice& device) {
  // As a number: newer producers know devices for which this enum has no value.
  int32_t type = 0;
  static_assert(sizeof(type) == sizeof(device.device_type), "DLPack's enums are ints");
  std::memcpy(&type, &device.device_type, sizeof(type));
  switch (type) {
    case kDLCPU:
    case kDLCUDAHost:  // Page-locked, but the CPU's.
      return Device{DeviceType::kCpu, 0};
    case kDLCUDA:
      return Device{DeviceType::kCuda, device.device_id};
  }
  return ArgumentError(absl::StrCat("DLPack device type ", type,
                                    " is not known; move the array to the CPU or a CUDA device"));
}

DLDevice ToDLDevice(const Device& device) {
  return {device.type == DeviceType::kCpu ? kDLCPU : kDLCUDA, device.index};
}

// A managed tensor of ours, and what it refers to.
struct Exported {
  explicit Exported(const Tensor& t)
      : tensor(t), shape(t.shape().begin(), t.shape().end()), strides(t.strides()) {}

  const Tensor tensor;  // Keeps the memory.
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  DLManagedTensor managed = {};
};

}  // namespace

absl::StatusOr<Tensor> FromDLPack(DLManagedTensor* managed, Access access) {
  std::shared_ptr<void> owner(managed, [](void* owned) {
    auto* const tensor = static_cast<DLManagedTensor*>(owned);
    if (tensor->deleter != nullptr) tensor->deleter(tensor);
  });
  const DLTensor& source = managed->dl_tensor;
  SYNCLINE_ASSIGN_OR_RETURN(const DType dtype, FromDLDataType(source.dtype));
  SYNCLINE_ASSIGN_OR_RETURN(const Device device, FromDLDevice(source.device));
  if (source.ndim < 0) {
    return ArgumentError(absl::StrCat("DLPack tensor has ", source.ndim, " dimensions"));
  }
  std::vector<int64_t> shape(source.shape, source.shape + source.ndim);
  SYNCLINE_RETURN_IF_ERROR(CheckShape(dtype, shape));
  std::vector<int64_t> strides;
  if (source.strides != nullptr) strides.assign(source.strides, source.strides + source.ndim);
  void* const data =
      source.data == nullptr ? nullptr : static_cast<char*>(source.data) + source.byte_offset;
  return Tensor(data, dtype, shape, strides, device, std::move(owner), access);
}

DLManagedTensor* ToDLPack(const Tensor& tensor) {
  auto exported = std::make_unique<Exported>(tensor);
  DLManagedTensor& managed = exported->managed;
  managed.dl_tensor.data = tensor.data();
  managed.dl_tensor.device = ToDLDevice(tensor.device());
  managed.dl_tensor.ndim = static_cast<int>(exported->shape.size());
  managed.dl_tensor.dtype = ToDLDataType(tensor.dtype());
  managed.dl_tensor.shape = exported->shape.data();
  managed.dl_tensor.strides = exported->strides.data();
  managed.dl_tensor.byte_offset = 0;
  managed.manager_ctx = exported.get();
  managed.deleter = [](DLManagedTensor* self) { delete static_cast<Exported*>(self->manager_ctx); };
  return &exported.release()->managed;
}

}  // namespace syncline
