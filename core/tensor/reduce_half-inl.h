// float16 and bfloat16, stored as 16 bits and computed in float32; for one instruction set.

// Highway's include guard: HWY_TARGET_TOGGLE flips for each instruction set.
#if defined(SYNCLINE_CORE_TENSOR_REDUCE_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SYNCLINE_CORE_TENSOR_REDUCE_HALF_INL_H_
#undef SYNCLINE_CORE_TENSOR_REDUCE_HALF_INL_H_
#else
#define SYNCLINE_CORE_TENSOR_REDUCE_HALF_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "syncline/check.h"

HWY_BEFORE_NAMESPACE();
namespace syncline::tensor {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The 16 bits at `from` of each lane, extended to 32.
template <class DI32>
HWY_INLINE hn::Vec<DI32> LoadBits16(DI32 di32, const void* from) {
  const hn::Rebind<uint16_t, DI32> d16;
  return hn::PromoteTo(di32, hn::LoadU(d16, static_cast<const uint16_t*>(from)));
}

// Requires lanes in [0, 65535].
template <class DI32>
HWY_INLINE void StoreBits16(DI32 di32, hn::Vec<DI32> bits, void* to) {
  SYNCLINE_DCHECK(hn::AllTrue(di32, hn::Eq(hn::And(bits, hn::Set(di32, 0xFFFF)), bits)));
  const hn::Rebind<uint16_t, DI32> d16;
  hn::StoreU(hn::DemoteTo(d16, bits), d16, static_cast<uint16_t*>(to));
}

struct BFloat16 {
  using Computed = float;
  static constexpr size_t kSize = 2;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const void* from) {
    const hn::RebindToSigned<D> di;
    return hn::BitCast(d, hn::ShiftLeft<16>(LoadBits16(di, from)));
  }

  // To nearest, ties to even: adds just less than half a unit, and the lowest bit that stays.
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, void* to) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto bits = hn::BitCast(du, v);
    const auto lowest = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto rounded = hn::Add(bits, hn::Add(lowest, hn::Set(du, 0x7FFFu)));
    const auto quiet_nan = hn::Or(bits, hn::Set(du, 0x00400000u));
    const auto chosen =
        hn::IfThenElse(hn::IsNaN(v), hn::BitCast(d, quiet_nan), hn::BitCast(d, rounded));
    StoreBits16(di, hn::BitCast(di, hn::ShiftRight<16>(hn::BitCast(du, chosen))), to);
  }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)

// The CPU converts.
struct Float16 {
  using Computed = float;
  static constexpr size_t kSize = 2;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const void* from) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    const auto bits = hn::LoadU(d16, static_cast<const uint16_t*>(from));
    return hn::PromoteTo(d, hn::BitCast(df16, bits));
  }

  template <class D>
  static HWY_INLINE void Store(D /*d*/, hn::Vec<D> v, void* to) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    hn::StoreU(hn::BitCast(d16, hn::DemoteTo(df16, v)), d16, static_cast<uint16_t*>(to));
  }
};

#else

// Integer arithmetic does, since Highway's replacement does not round to even.
struct Float16 {
  using Computed = float;
  static constexpr size_t kSize = 2;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const void* from) {
    const hn::RebindToSigned<D> di;
    const auto bits = LoadBits16(di, from);
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(di, 0x8000)));
    const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFF));
    // The exponent's bias grows from 15 to 127; that of infinity and NaN, from 31 to 255.
    const auto bias = hn::Set(di, (127 - 15) << 23);
    const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), bias);
    const auto is_finite = hn::Lt(magnitude, hn::Set(di, 0x7C00));
    // Subnormals are multiples of 2^-24.
    const auto subnormal = hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, 0x1p-24f));
    const auto is_subnormal = hn::Lt(magnitude, hn::Set(di, 0x0400));
    const auto large = hn::IfThenElse(is_finite, normal, hn::Add(normal, bias));
    const auto result = hn::IfThenElse(is_subnormal, hn::BitCast(di, subnormal), large);
    return hn::BitCast(d, hn::Or(result, sign));
  }

  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, void* to) {
    const hn::RebindToSigned<D> di;
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(di, v);
    const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
    const auto sign = hn::ShiftRight<16>(hn::BitCast(du, hn::Xor(bits, magnitude)));
    // To nearest, ties to even: adds just less than half a unit, and the lowest bit that stays.
    const auto lowest = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
    const auto rebased = hn::Sub(magnitude, hn::Set(di, ((127 - 15) << 23) - 0xFFF));
    const auto normal = hn::ShiftRight<13>(hn::Add(rebased, lowest));
    // Below 2^-14 results are multiples of 2^-24, the last place of numbers in [0.5, 1): adding 0.5
    // rounds to them.
    const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
    const auto subnormal = hn::Sub(hn::BitCast(di, shifted), hn::Set(di, 0x3F000000));
    const auto is_subnormal = hn::Lt(magnitude, hn::Set(di, (127 - 14) << 23));
    const auto finite = hn::IfThenElse(is_subnormal, subnormal, normal);
    // 65520 is the least that rounds to infinity.
    const auto is_finite = hn::Lt(magnitude, hn::Set(di, 0x477FF000));
    const auto is_nan = hn::Gt(magnitude, hn::Set(di, 0x7F800000));
    const auto infinity_or_nan = hn::IfThenElse(is_nan, hn::Set(di, 0x7E00), hn::Set(di, 0x7C00));
    const auto result = hn::IfThenElse(is_finite, finite, infinity_or_nan);
    StoreBits16(di, hn::Or(result, hn::BitCast(di, sign)), to);
  }
};

#endif

}  // namespace HWY_NAMESPACE
}  // namespace syncline::tensor
HWY_AFTER_NAMESPACE();

#endif  // SYNCLINE_CORE_TENSOR_REDUCE_HALF_INL_H_
