// The arithmetic of one element, for devices and hosts alike: nvcc compiles it for devices, and g++
// for the simulated device of tests. Bitwise the same as core/tensor/reduce_kernels.h, except for
// the sign and payload of a NaN.
#ifndef SYNCLINE_CORE_DEVICE_KERNELS_ELEMENTS_H_
#define SYNCLINE_CORE_DEVICE_KERNELS_ELEMENTS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#define SYNCLINE_HOST_DEVICE __host__ __device__ inline
#else
#define SYNCLINE_HOST_DEVICE inline
#endif

namespace syncline::device::kernels {

// The operations that reduce. avg is kSum, and a division of the result.
enum class Operation : int32_t { kSum, kProduct, kMin, kMax, kBand, kBor, kBxor };

template <typename To, typename From>
SYNCLINE_HOST_DEVICE To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// The formats: how an element is stored, and the type in which it is computed.

template <typename T>
struct Plain {
  using Stored = T;
  using Computed = T;
  static SYNCLINE_HOST_DEVICE T Load(T stored) { return stored; }
  static SYNCLINE_HOST_DEVICE T Store(T computed) { return computed; }
};

// Devices convert to nearest, ties to even, in one instruction; hosts do it with integers.

struct BFloat16 {
  using Stored = uint16_t;
  using Computed = float;

  static SYNCLINE_HOST_DEVICE float Load(uint16_t stored) {
    return BitCast<float>(static_cast<uint32_t>(stored) << 16);
  }

  static SYNCLINE_HOST_DEVICE uint16_t Store(float computed) {
#ifdef __CUDA_ARCH__
    uint16_t stored;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(stored) : "f"(computed));
    return stored;
#else
    const auto bits = BitCast<uint32_t>(computed);
    if (computed != computed) return static_cast<uint16_t>((bits | 0x00400000u) >> 16);
    // Adds just less than half a unit, and the lowest bit that stays.
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
#endif
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Computed = float;

  static SYNCLINE_HOST_DEVICE float Load(uint16_t stored) {
#ifdef __CUDA_ARCH__
    float computed;
    asm("cvt.f32.f16 %0, %1;" : "=f"(computed) : "h"(stored));
    return computed;
#else
    const uint32_t sign = (stored & 0x8000u) << 16;
    const uint32_t magnitude = stored & 0x7FFFu;
    if (magnitude < 0x0400u) {  // Subnormals are multiples of 2^-24.
      const float value = static_cast<float>(magnitude) * (1.0f / 16777216.0f);
      return BitCast<float>(BitCast<uint32_t>(value) | sign);
    }
    // The exponent's bias grows from 15 to 127; that of infinity and NaN, from 31 to 255.
    constexpr uint32_t kBias = (127 - 15) << 23;
    const uint32_t bias = magnitude < 0x7C00u ? kBias : 2 * kBias;
    return BitCast<float>(((magnitude << 13) + bias) | sign);
#endif
  }

  static SYNCLINE_HOST_DEVICE uint16_t Store(float computed) {
#ifdef __CUDA_ARCH__
    uint16_t stored;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(stored) : "f"(computed));
    return stored;
#else
    const auto bits = BitCast<uint32_t>(computed);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    const uint32_t sign = (bits ^ magnitude) >> 16;
    uint32_t stored;
    if (magnitude > 0x7F800000u) {
      stored = 0x7E00u;
    } else if (magnitude >= 0x477FF000u) {  // 65520 is the least that rounds to infinity.
      stored = 0x7C00u;
    } else if (magnitude < (127u - 14) << 23) {
      // Results are multiples of 2^-24, the last place of numbers in [0.5, 1): adding 0.5 rounds to
      // them.
      const float shifted = BitCast<float>(magnitude) + 0.5f;
      stored = BitCast<uint32_t>(shifted) - 0x3F000000u;
    } else {
      const uint32_t lowest = (magnitude >> 13) & 1u;
      stored = (magnitude - ((127u - 15) << 23) + 0xFFFu + lowest) >> 13;
    }
    return static_cast<uint16_t>(stored | sign);
#endif
  }
};

// Integer sums and products wrap around: they are made on unsigned numbers of at least 32 bits,
// whose low bits are those of the result.
template <typename T>
SYNCLINE_HOST_DEVICE auto Wide(T value) {
  if constexpr (std::is_floating_point<T>::value || sizeof(T) > sizeof(uint32_t)) {
    return static_cast<
        typename std::conditional<std::is_floating_point<T>::value, T, uint64_t>::type>(value);
  } else {
    return static_cast<uint32_t>(value);
  }
}

template <typename T>
SYNCLINE_HOST_DEVICE T Add(T a, T b) {
  return static_cast<T>(Wide(a) + Wide(b));
}

template <typename T>
SYNCLINE_HOST_DEVICE T Multiply(T a, T b) {
  return static_cast<T>(Wide(a) * Wide(b));
}

// Of floats: a if it is a NaN or strictly the winner, else b, which may be a NaN.
template <typename T>
SYNCLINE_HOST_DEVICE T Least(T a, T b) {
  return a < b || a != a ? a : b;
}

template <typename T>
SYNCLINE_HOST_DEVICE T Greatest(T a, T b) {
  return a > b || a != a ? a : b;
}

// Integers round towards zero. Requires divisor >= 1.
template <typename T>
SYNCLINE_HOST_DEVICE T Divided(T value, int32_t divisor) {
  if constexpr (std::is_floating_point<T>::value || sizeof(T) > sizeof(uint32_t)) {
    return value / static_cast<T>(divisor);
  } else if constexpr (std::is_signed<T>::value) {
    return static_cast<T>(static_cast<int32_t>(value) / divisor);
  } else {
    return static_cast<T>(static_cast<uint32_t>(value) / static_cast<uint32_t>(divisor));
  }
}

// total[i] = total[i] (op) next[i] for i < kCount.
template <int kCount, typename T>
SYNCLINE_HOST_DEVICE void Combine(Operation op, T* total, const T* next) {
  switch (op) {
    case Operation::kSum:
      for (int i = 0; i < kCount; ++i) total[i] = Add(total[i], next[i]);
      return;
    case Operation::kProduct:
      for (int i = 0; i < kCount; ++i) total[i] = Multiply(total[i], next[i]);
      return;
    case Operation::kMin:
      for (int i = 0; i < kCount; ++i) total[i] = Least(total[i], next[i]);
      return;
    case Operation::kMax:
      for (int i = 0; i < kCount; ++i) total[i] = Greatest(total[i], next[i]);
      return;
    default:
      break;
  }
  if constexpr (std::is_integral<T>::value) {
    switch (op) {
      case Operation::kBand:
        for (int i = 0; i < kCount; ++i) total[i] = static_cast<T>(total[i] & next[i]);
        return;
      case Operation::kBor:
        for (int i = 0; i < kCount; ++i) total[i] = static_cast<T>(total[i] | next[i]);
        return;
      case Operation::kBxor:
        for (int i = 0; i < kCount; ++i) total[i] = static_cast<T>(total[i] ^ next[i]);
        return;
      default:
        return;
    }
  }
}

// The value of one format in another, rounded once, to nearest, ties to even.

// A float that lies as `value` does with respect to everything that has at least two bits fewer
// than a float: the neighbour of odd bits, if `value` is not a float itself.
SYNCLINE_HOST_DEVICE float RoundToOdd(double value) {
  const auto rounded = static_cast<float>(value);
  const auto bits = BitCast<uint32_t>(rounded);
  const auto back = static_cast<double>(rounded);
  if (back == value || value != value || (bits & 1u) != 0) return rounded;
  const bool is_beyond = back < 0 ? back < value : back > value;
  // From 0 the only way is up; the sign of a zero is that of `value`.
  return BitCast<float>(is_beyond && (bits << 1) != 0 ? bits - 1 : bits + 1);
}

template <class From, class To>
SYNCLINE_HOST_DEVICE typename To::Stored Converted(typename From::Stored stored) {
  const auto value = From::Load(stored);
  constexpr bool kIsHalf = sizeof(typename To::Stored) == 2;
  if constexpr (kIsHalf && sizeof(value) == sizeof(double)) {
    return To::Store(RoundToOdd(value));
  } else {
    return To::Store(static_cast<typename To::Computed>(value));
  }
}

}  // namespace syncline::device::kernels

#endif  // SYNCLINE_CORE_DEVICE_KERNELS_ELEMENTS_H_
