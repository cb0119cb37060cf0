// The list of all kernels.
#ifndef SYNCLINE_CORE_DEVICE_KERNELS_KERNEL_LIST_H_
#define SYNCLINE_CORE_DEVICE_KERNELS_KERNEL_LIST_H_

#include <cstdint>

#include "core/device/kernels/copy.h"
#include "core/device/kernels/elements.h"
#include "core/device/kernels/elementwise.h"
#include "core/device/kernels/thread.h"

namespace syncline::device::kernels {

// How many copies and inputs one launch takes. A launch with fewer bytes of parameters is cheaper,
// so there are kernels for few and for many.
constexpr uint32_t kFewCopies = 144;
constexpr uint32_t kManyCopies = 1168;
constexpr uint32_t kFewInputs = 64;
constexpr uint32_t kManyInputs = 4000;

// CUDA's limit since version 12.1.
constexpr uint32_t kMaxArgsBytes = 32764;
static_assert(sizeof(CopyArgs<kManyCopies>) <= kMaxArgsBytes, "");
static_assert(sizeof(ReduceArgs<kManyInputs>) <= kMaxArgsBytes, "");

}  // namespace syncline::device::kernels

// Calls X(name, type) for each kernel, in namespace syncline::device::kernels. The type has Args,
// the parameters, and Run(const Args&, const Thread&), what one thread does.
#define SYNCLINE_KERNELS(X)                                                    \
  X(syncline_copy_few, Copy<kFewCopies>)                                       \
  X(syncline_copy_many, Copy<kManyCopies>)                                     \
  SYNCLINE_KERNELS_OF_FORMAT(X, int8, Plain<int8_t>)                           \
  SYNCLINE_KERNELS_OF_FORMAT(X, int16, Plain<int16_t>)                         \
  SYNCLINE_KERNELS_OF_FORMAT(X, int32, Plain<int32_t>)                         \
  SYNCLINE_KERNELS_OF_FORMAT(X, int64, Plain<int64_t>)                         \
  SYNCLINE_KERNELS_OF_FORMAT(X, uint8, Plain<uint8_t>)                         \
  SYNCLINE_KERNELS_OF_FORMAT(X, uint16, Plain<uint16_t>)                       \
  SYNCLINE_KERNELS_OF_FORMAT(X, uint32, Plain<uint32_t>)                       \
  SYNCLINE_KERNELS_OF_FORMAT(X, uint64, Plain<uint64_t>)                       \
  SYNCLINE_KERNELS_OF_FLOAT(X, float16, Float16)                               \
  SYNCLINE_KERNELS_OF_FLOAT(X, bfloat16, BFloat16)                             \
  SYNCLINE_KERNELS_OF_FLOAT(X, float32, Plain<float>)                          \
  SYNCLINE_KERNELS_OF_FLOAT(X, float64, Plain<double>)                         \
  X(syncline_convert_float16_to_bfloat16, Convert<Float16, BFloat16>)          \
  X(syncline_convert_float16_to_float32, Convert<Float16, Plain<float>>)       \
  X(syncline_convert_float16_to_float64, Convert<Float16, Plain<double>>)      \
  X(syncline_convert_bfloat16_to_float16, Convert<BFloat16, Float16>)          \
  X(syncline_convert_bfloat16_to_float32, Convert<BFloat16, Plain<float>>)     \
  X(syncline_convert_bfloat16_to_float64, Convert<BFloat16, Plain<double>>)    \
  X(syncline_convert_float32_to_float16, Convert<Plain<float>, Float16>)       \
  X(syncline_convert_float32_to_bfloat16, Convert<Plain<float>, BFloat16>)     \
  X(syncline_convert_float32_to_float64, Convert<Plain<float>, Plain<double>>) \
  X(syncline_convert_float64_to_float16, Convert<Plain<double>, Float16>)      \
  X(syncline_convert_float64_to_bfloat16, Convert<Plain<double>, BFloat16>)    \
  X(syncline_convert_float64_to_float32, Convert<Plain<double>, Plain<float>>)

#define SYNCLINE_KERNELS_OF_FORMAT(X, name, F)           \
  X(syncline_reduce_few_##name, Reduce<F, kFewInputs>)   \
  X(syncline_reduce_many_##name, Reduce<F, kManyInputs>) \
  X(syncline_divide_##name, Divide<F>)

#define SYNCLINE_KERNELS_OF_FLOAT(X, name, F) \
  SYNCLINE_KERNELS_OF_FORMAT(X, name, F)      \
  X(syncline_scale_##name, Scale<F>)

#endif  // SYNCLINE_CORE_DEVICE_KERNELS_KERNEL_LIST_H_
