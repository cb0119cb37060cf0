#include "ddp/hooks/half_kernels.h"

#include <algorithm>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ddp/hooks/half_kernels.cc"
#include "hwy/foreach_target.h"  // Includes this file once for each instruction set.
// Behind hwy/foreach_target.h:
#include "core/tensor/reduce_half-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncline::ddp {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using tensor::HWY_NAMESPACE::BFloat16;
using tensor::HWY_NAMESPACE::Float16;

// Calls kernel(d, i) for i = 0, a vector's length, ... and, one element at a time, for the rest.
template <class Kernel>
HWY_INLINE void ForEachVector(size_t count, Kernel kernel) {
  const hn::ScalableTag<float> wide;
  const hn::CappedTag<float, 1> one;
  const size_t lanes = hn::Lanes(wide);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) kernel(wide, i);
  for (; i < count; ++i) kernel(one, i);
}

template <class Half>
void NarrowFloats(uint16_t* out, const float* in, float factor, size_t count) {
  ForEachVector(count, [&](auto d, size_t i) {
    Half::Store(d, hn::Mul(hn::LoadU(d, in + i), hn::Set(d, factor)), out + i);
  });
}

template <class Half>
void WidenToFloats(float* out, const uint16_t* in, size_t count) {
  ForEachVector(count, [&](auto d, size_t i) { hn::StoreU(Half::Load(d, in + i), d, out + i); });
}

void NarrowHere(DType half, uint16_t* out, const float* in, float factor, size_t count) {
  auto* const narrow = half == DType::kFloat16 ? &NarrowFloats<Float16> : &NarrowFloats<BFloat16>;
  narrow(out, in, factor, count);
}

void WidenHere(DType half, float* out, const uint16_t* in, size_t count) {
  auto* const widen = half == DType::kFloat16 ? &WidenToFloats<Float16> : &WidenToFloats<BFloat16>;
  widen(out, in, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace syncline::ddp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace syncline::ddp {

HWY_EXPORT(NarrowHere);
HWY_EXPORT(WidenHere);

namespace {

constexpr size_t kPiece = 1024;  // Doubles go through as many floats at a time.

}  // namespace

void Narrow(DType half, void* out, DType wide, const void* in, double factor, size_t count) {
  auto* const halves = static_cast<uint16_t*>(out);
  if (wide == DType::kFloat32) {
    HWY_DYNAMIC_DISPATCH(NarrowHere)
    (half, halves, static_cast<const float*>(in), static_cast<float>(factor), count);
    return;
  }
  const auto* const doubles = static_cast<const double*>(in);
  float piece[kPiece];
  for (size_t begin = 0; begin < count; begin += kPiece) {
    const size_t size = std::min(kPiece, count - begin);
    for (size_t i = 0; i < size; ++i) piece[i] = static_cast<float>(doubles[begin + i] * factor);
    HWY_DYNAMIC_DISPATCH(NarrowHere)(half, halves + begin, piece, 1.0f, size);
  }
}

void Widen(DType wide, void* out, DType half, const void* in, size_t count) {
  const auto* const halves = static_cast<const uint16_t*>(in);
  if (wide == DType::kFloat32) {
    HWY_DYNAMIC_DISPATCH(WidenHere)(half, static_cast<float*>(out), halves, count);
    return;
  }
  auto* const doubles = static_cast<double*>(out);
  float piece[kPiece];
  for (size_t begin = 0; begin < count; begin += kPiece) {
    const size_t size = std::min(kPiece, count - begin);
    HWY_DYNAMIC_DISPATCH(WidenHere)(half, piece, halves + begin, size);
    for (size_t i = 0; i < size; ++i) doubles[begin + i] = piece[i];
  }
}

}  // namespace syncline::ddp

#endif  // HWY_ONCE
