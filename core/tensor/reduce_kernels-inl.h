// The kernels for one instruction set: reduce_kernels.cc includes this once for each.
//
// There is one path for every element: a tail shorter than a vector is copied to a whole vector.
// So an element's result depends neither on its position nor on the length of vectors.

// Highway's include guard: HWY_TARGET_TOGGLE flips for each instruction set.
#if defined(SYNCLINE_CORE_TENSOR_REDUCE_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SYNCLINE_CORE_TENSOR_REDUCE_KERNELS_INL_H_
#undef SYNCLINE_CORE_TENSOR_REDUCE_KERNELS_INL_H_
#else
#define SYNCLINE_CORE_TENSOR_REDUCE_KERNELS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/types/span.h"
#include "core/tensor/reduce_half-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncline::tensor {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The operations, on vectors. Integer sums and products wrap around; they are made on unsigned
// lanes, whose bits are those of the signed result.

struct Sum {
  template <class D, class V>
  static HWY_INLINE V Apply(D /*d*/, V a, V b) {
    return hn::Add(a, b);
  }
};

struct Product {
  template <class D, class V>
  static HWY_INLINE V Apply(D d, V a, V b) {
    if constexpr (sizeof(hn::TFromD<D>) > 1) {
      return hn::Mul(a, b);
    } else {
      return Bytes(d, a, b);
    }
  }

 private:
  // Highway multiplies no bytes: multiplies the even and the odd ones as 16-bit lanes.
  template <class D, class V>
  static HWY_INLINE V Bytes(D d, V a, V b) {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, static_cast<uint8_t>(hn::GetLane(a) * hn::GetLane(b)));
#else
    const hn::Repartition<uint16_t, D> d16;
    const auto a16 = hn::BitCast(d16, a);
    const auto b16 = hn::BitCast(d16, b);
    const auto even = hn::And(hn::Mul(a16, b16), hn::Set(d16, uint16_t{0xFF}));
    const auto odd = hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16));
    return hn::BitCast(d, hn::Or(even, hn::ShiftLeft<8>(odd)));
#endif
  }
};

// Of floats: a if it is a NaN or strictly the winner, else b (which may be a NaN). Highway's Min
// and Max differ between instruction sets for NaNs and for zeros of unlike signs.
struct Min {
  template <class D, class V>
  static HWY_INLINE V Apply(D /*d*/, V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Max {
  template <class D, class V>
  static HWY_INLINE V Apply(D /*d*/, V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
    } else {
      return hn::Max(a, b);
    }
  }
};

struct Band {
  template <class D, class V>
  static HWY_INLINE V Apply(D /*d*/, V a, V b) {
    return hn::And(a, b);
  }
};

struct Bor {
  template <class D, class V>
  static HWY_INLINE V Apply(D /*d*/, V a, V b) {
    return hn::Or(a, b);
  }
};

struct Bxor {
  template <class D, class V>
  static HWY_INLINE V Apply(D /*d*/, V a, V b) {
    return hn::Xor(a, b);
  }
};

// Divides by a number; ignores the second operand.
template <typename T>
struct DivideBy {
  template <class D, class V>
  HWY_INLINE V Apply(D d, V a, V /*b*/) const {
    return hn::Div(a, hn::Set(d, divisor));
  }
  T divisor;
};

// Multiplies by a number; ignores the second operand.
template <typename T>
struct MultiplyBy {
  template <class D, class V>
  HWY_INLINE V Apply(D d, V a, V /*b*/) const {
    return hn::Mul(a, hn::Set(d, factor));
  }
  T factor;
};

// How elements are stored in memory, and the type in which they are computed. The 16-bit floats
// are in reduce_half-inl.h.
template <typename T>
struct Plain {
  using Computed = T;
  static constexpr size_t kSize = sizeof(T);

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const void* from) {
    return hn::LoadU(d, static_cast<const T*>(from));
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, void* to) {
    hn::StoreU(v, d, static_cast<T*>(to));
  }
};

// out[i] = a[i] (op) b[i], stored in the formats FA, FB and FOut. `out` may be `a` or `b`.
template <class FA, class FB, class FOut, class Op>
void Combine(const Op& op, const void* a, const void* b, void* out, size_t count) {
  const hn::ScalableTag<typename FA::Computed> d;
  const size_t lanes = hn::Lanes(d);
  const char* a_at = static_cast<const char*>(a);
  const char* b_at = static_cast<const char*>(b);
  char* out_at = static_cast<char*>(out);
  for (; count >= lanes; count -= lanes) {
    FOut::Store(d, op.Apply(d, FA::Load(d, a_at), FB::Load(d, b_at)), out_at);
    a_at += lanes * FA::kSize;
    b_at += lanes * FB::kSize;
    out_at += lanes * FOut::kSize;
  }
  if (count == 0) return;
  constexpr size_t kMaxLanes = hn::MaxLanes(hn::ScalableTag<typename FA::Computed>());
  HWY_ALIGN char a_tail[kMaxLanes * FA::kSize] = {};
  HWY_ALIGN char b_tail[kMaxLanes * FB::kSize] = {};
  HWY_ALIGN char out_tail[kMaxLanes * FOut::kSize];
  std::memcpy(a_tail, a_at, count * FA::kSize);
  std::memcpy(b_tail, b_at, count * FB::kSize);
  FOut::Store(d, op.Apply(d, FA::Load(d, a_tail), FB::Load(d, b_tail)), out_tail);
  std::memcpy(out_at, out_tail, count * FOut::kSize);
}

// Divides `count` elements by `divisor`. `to` may be `from`.
using Divider = void (*)(const void* from, void* to, int divisor, size_t count);

template <class F, class FOut>
void DivideFloats(const void* from, void* to, int divisor, size_t count) {
  using T = typename F::Computed;
  Combine<F, F, FOut>(DivideBy<T>{static_cast<T>(divisor)}, from, from, to, count);
}

template <class F>
void ScaleFloats(void* data, double factor, size_t count) {
  using T = typename F::Computed;
  Combine<F, F, F>(MultiplyBy<T>{static_cast<T>(factor)}, data, data, data, count);
}

// Up to 32 bits a product with the rounded-up reciprocal does, which is exact for numbers below
// 2^32 (Granlund and Montgomery, "Division by Invariant Integers using Multiplication", section 4).
template <typename T>
void DivideIntegers(const void* from, void* to, int divisor, size_t count) {
  typedef T Unaligned __attribute__((aligned(1), may_alias));
  const auto* const in = static_cast<const Unaligned*>(from);
  auto* const out = static_cast<Unaligned*>(to);
  if (divisor == 1) {
    std::memmove(to, from, count * sizeof(T));
  } else if constexpr (sizeof(T) == sizeof(int64_t)) {
    for (size_t i = 0; i < count; ++i) out[i] = in[i] / static_cast<T>(divisor);
  } else {
    const uint64_t reciprocal = ~uint64_t{0} / static_cast<uint64_t>(divisor) + 1;
    for (size_t i = 0; i < count; ++i) {
      const int64_t value = in[i];
      const auto magnitude = static_cast<uint64_t>(value < 0 ? -value : value);
      const auto quotient = static_cast<int64_t>(
          static_cast<uint64_t>((static_cast<unsigned __int128>(magnitude) * reciprocal) >> 64));
      out[i] = static_cast<T>(value < 0 ? -quotient : quotient);
    }
  }
}

// What the functions of reduce_kernels.h do with one operation on one format.

template <class Op, class F>
struct AccumulateKernel {
  static void Run(void* out, const void* in, size_t count) {
    Combine<F, F, F>(Op(), out, in, out, count);
  }
};

template <class Op, class F>
struct ReduceKernel {
  using Sum = Plain<typename F::Computed>;  // Of a part of the inputs.

  // Divides by the number of inputs if `divider`, from Computed to F, is not null.
  static void Run(void* out, absl::Span<const void* const> inputs, size_t count, Divider divider) {
    if (inputs.size() == 1) {
      std::memmove(out, inputs[0], count * F::kSize);
      return;
    }
    for (size_t begin = 0; begin < count; begin += kBlock) {
      RunBlock(out, inputs, begin, std::min(kBlock, count - begin), divider);
    }
  }

 private:
  // Partial results of a block stay in the first-level cache while all inputs pass by.
  static constexpr size_t kBlock = 8192 / Sum::kSize;

  static void RunBlock(void* out, absl::Span<const void* const> inputs, size_t begin, size_t count,
                       Divider divider) {
    const auto input = [&](size_t i) {
      return static_cast<const char*>(inputs[i]) + begin * F::kSize;
    };
    char* const out_block = static_cast<char*>(out) + begin * F::kSize;
    const size_t last = inputs.size() - 1;
    if (last == 1 && divider == nullptr) {
      Combine<F, F, F>(Op(), input(0), input(1), out_block, count);
      return;
    }
    HWY_ALIGN char partial[kBlock * Sum::kSize];
    Combine<F, F, Sum>(Op(), input(0), input(1), partial, count);
    for (size_t i = 2; i < last; ++i) Combine<Sum, F, Sum>(Op(), partial, input(i), partial, count);
    if (divider == nullptr) {
      Combine<Sum, F, F>(Op(), partial, input(last), out_block, count);
      return;
    }
    if (last > 1) Combine<Sum, F, Sum>(Op(), partial, input(last), partial, count);
    divider(partial, out_block, static_cast<int>(inputs.size()), count);
  }
};

// Calls Kernel<Op, F>::Run(args...) for the Op and F that belong to `op` and to integer type T.
template <template <class, class> class Kernel, typename T, typename... Args>
void RunOnIntegers(ReduceOp op, Args... args) {
  using Bits = Plain<std::make_unsigned_t<T>>;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return Kernel<Sum, Bits>::Run(args...);
    case ReduceOp::kProduct:
      return Kernel<Product, Bits>::Run(args...);
    case ReduceOp::kMin:
      return Kernel<Min, Plain<T>>::Run(args...);
    case ReduceOp::kMax:
      return Kernel<Max, Plain<T>>::Run(args...);
    case ReduceOp::kBand:
      return Kernel<Band, Bits>::Run(args...);
    case ReduceOp::kBor:
      return Kernel<Bor, Bits>::Run(args...);
    case ReduceOp::kBxor:
      return Kernel<Bxor, Bits>::Run(args...);
    case ReduceOp::kPremulSum:
      return;  // CheckReduction does not allow it.
  }
}

// The same for floats of format F.
template <template <class, class> class Kernel, class F, typename... Args>
void RunOnFloats(ReduceOp op, Args... args) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return Kernel<Sum, F>::Run(args...);
    case ReduceOp::kProduct:
      return Kernel<Product, F>::Run(args...);
    case ReduceOp::kMin:
      return Kernel<Min, F>::Run(args...);
    case ReduceOp::kMax:
      return Kernel<Max, F>::Run(args...);
    default:
      return;  // CheckReduction allows no others.
  }
}

// The same for any element type that can be reduced.
template <template <class, class> class Kernel, typename... Args>
void Run(DType dtype, ReduceOp op, Args... args) {
  switch (dtype) {
    case DType::kInt8:
      return RunOnIntegers<Kernel, int8_t>(op, args...);
    case DType::kInt16:
      return RunOnIntegers<Kernel, int16_t>(op, args...);
    case DType::kInt32:
      return RunOnIntegers<Kernel, int32_t>(op, args...);
    case DType::kInt64:
      return RunOnIntegers<Kernel, int64_t>(op, args...);
    case DType::kUInt8:
      return RunOnIntegers<Kernel, uint8_t>(op, args...);
    case DType::kUInt16:
      return RunOnIntegers<Kernel, uint16_t>(op, args...);
    case DType::kUInt32:
      return RunOnIntegers<Kernel, uint32_t>(op, args...);
    case DType::kUInt64:
      return RunOnIntegers<Kernel, uint64_t>(op, args...);
    case DType::kFloat16:
      return RunOnFloats<Kernel, Float16>(op, args...);
    case DType::kBFloat16:
      return RunOnFloats<Kernel, BFloat16>(op, args...);
    case DType::kFloat32:
      return RunOnFloats<Kernel, Plain<float>>(op, args...);
    case DType::kFloat64:
      return RunOnFloats<Kernel, Plain<double>>(op, args...);
    case DType::kBool:
    case DType::kComplex64:
    case DType::kComplex128:
      return;  // Lowered to other types.
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      return;  // Refused before, see reduce_kernels.h.
  }
}

// From how elements of `dtype` are stored, or computed, to how they are stored.
enum class From { kStored, kComputed };

inline Divider DividerOf(DType dtype, From from) {
  switch (dtype) {
    case DType::kInt8:
      return &DivideIntegers<int8_t>;
    case DType::kInt16:
      return &DivideIntegers<int16_t>;
    case DType::kInt32:
      return &DivideIntegers<int32_t>;
    case DType::kInt64:
      return &DivideIntegers<int64_t>;
    case DType::kUInt8:
      return &DivideIntegers<uint8_t>;
    case DType::kUInt16:
      return &DivideIntegers<uint16_t>;
    case DType::kUInt32:
      return &DivideIntegers<uint32_t>;
    case DType::kUInt64:
      return &DivideIntegers<uint64_t>;
    case DType::kFloat16:
      return from == From::kStored ? &DivideFloats<Float16, Float16>
                                   : &DivideFloats<Plain<float>, Float16>;
    case DType::kBFloat16:
      return from == From::kStored ? &DivideFloats<BFloat16, BFloat16>
                                   : &DivideFloats<Plain<float>, BFloat16>;
    case DType::kFloat32:
      return &DivideFloats<Plain<float>, Plain<float>>;
    case DType::kFloat64:
      return &DivideFloats<Plain<double>, Plain<double>>;
    case DType::kBool:
    case DType::kComplex64:
    case DType::kComplex128:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      break;
  }
  return nullptr;
}

inline void ScaleElements(DType dtype, void* data, double factor, size_t count) {
  switch (dtype) {
    case DType::kFloat16:
      return ScaleFloats<Float16>(data, factor, count);
    case DType::kBFloat16:
      return ScaleFloats<BFloat16>(data, factor, count);
    case DType::kFloat32:
      return ScaleFloats<Plain<float>>(data, factor, count);
    case DType::kFloat64:
      return ScaleFloats<Plain<double>>(data, factor, count);
    default:
      return;  // premul_sum is defined on no others.
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace syncline::tensor
HWY_AFTER_NAMESPACE();

#endif  // SYNCLINE_CORE_TENSOR_REDUCE_KERNELS_INL_H_
