#include "backends/nccl/testing/fake_nccl/elements.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace fake_nccl {
namespace {

using syncline::nccl::NcclDataType;
using syncline::nccl::NcclRedOp;

// A binary floating type with a sign, narrower than float. Numbers whose exponent field is all ones
// are infinities and NaNs, except in the type without infinities, where one of them is NaN.
template <typename BitsT, int kExponent, int kMantissa, bool kInfinities, bool kSaturates>
struct Narrow {
  using Bits = BitsT;
  using Wide = float;

  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr unsigned kExponentMask = (1u << kExponent) - 1;
  static constexpr unsigned kMantissaMask = (1u << kMantissa) - 1;
  static constexpr unsigned kSign = 1u << (kExponent + kMantissa);
  static constexpr unsigned kLargest =
      kInfinities ? (kExponentMask << kMantissa) - 1 : (kSign - 1) - 1;
  static constexpr unsigned kInfinity = kInfinities ? kExponentMask << kMantissa : kSign - 1;
  static constexpr unsigned kNan = kInfinities ? kInfinity | (kMantissaMask + 1) >> 1 : kSign - 1;

  static float Load(Bits bits) {
    const unsigned exponent = bits >> kMantissa & kExponentMask;
    const unsigned mantissa = bits & kMantissaMask;
    const unsigned magnitude = bits & (kSign - 1);
    float value;
    if (kInfinities ? magnitude > kInfinity : magnitude == kNan) {
      value = NAN;
    } else if (kInfinities && magnitude == kInfinity) {
      value = INFINITY;
    } else if (exponent == 0) {
      value = std::ldexp(static_cast<float>(mantissa), 1 - kBias - kMantissa);
    } else {
      value = std::ldexp(static_cast<float>(mantissa + kMantissaMask + 1),
                         static_cast<int>(exponent) - kBias - kMantissa);
    }
    return (bits & kSign) != 0 ? -value : value;
  }

  static Bits Store(float value) {
    const unsigned sign = std::signbit(value) ? kSign : 0;
    if (std::isnan(value)) return static_cast<Bits>(sign | kNan);
    const float magnitude = std::fabs(value);
    unsigned bits;
    if (std::isinf(magnitude)) {
      bits = kInfinity;
    } else if (magnitude == 0) {
      bits = 0;
    } else {
      // In units of the last place, rounded to nearest even by nearbyint. A carry out of the
      // mantissa makes the next exponent, since the fields are adjacent.
      const int exponent = std::max(std::ilogb(magnitude), 1 - kBias);
      const auto units =
          static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, kMantissa - exponent)));
      const int64_t field = int64_t{exponent} + kBias - 1;
      const int64_t wide = (field << kMantissa) + units;
      bits = wide > int64_t{kLargest} ? kInfinity : static_cast<unsigned>(wide);
    }
    if (kSaturates && bits > kLargest) bits = kLargest;
    return static_cast<Bits>(sign | bits);
  }
};

using Half = Narrow<uint16_t, 5, 10, true, false>;
using Bfloat = Narrow<uint16_t, 8, 7, true, false>;
using Float8E4M3 = Narrow<uint8_t, 4, 3, false, true>;
using Float8E5M2 = Narrow<uint8_t, 5, 2, true, true>;

// A type of C++. Signed integers are computed as unsigned ones, which wrap around.
template <typename T>
struct Plain {
  using Bits = T;
  using Wide = T;
  static T Load(T bits) { return bits; }
  static T Store(T value) { return value; }
};

template <typename T>
T WrappedSum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

template <typename T>
T WrappedProduct(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

template <typename Type>
typename Type::Wide LoadAt(const void* data, size_t i) {
  typename Type::Bits bits;
  std::memcpy(&bits, static_cast<const char*>(data) + i * sizeof bits, sizeof bits);
  return Type::Load(bits);
}

template <typename Type>
void StoreAt(void* data, size_t i, typename Type::Wide value) {
  const typename Type::Bits bits = Type::Store(value);
  std::memcpy(static_cast<char*>(data) + i * sizeof bits, &bits, sizeof bits);
}

// Calls `function` with a value of the traits of `dtype`.
template <typename Function>
void WithType(NcclDataType dtype, const Function& function) {
  switch (dtype) {
    case syncline::nccl::kNcclInt8:
      return function(Plain<int8_t>());
    case syncline::nccl::kNcclUint8:
      return function(Plain<uint8_t>());
    case syncline::nccl::kNcclInt32:
      return function(Plain<int32_t>());
    case syncline::nccl::kNcclUint32:
      return function(Plain<uint32_t>());
    case syncline::nccl::kNcclInt64:
      return function(Plain<int64_t>());
    case syncline::nccl::kNcclUint64:
      return function(Plain<uint64_t>());
    case syncline::nccl::kNcclFloat16:
      return function(Half());
    case syncline::nccl::kNcclFloat32:
      return function(Plain<float>());
    case syncline::nccl::kNcclFloat64:
      return function(Plain<double>());
    case syncline::nccl::kNcclBfloat16:
      return function(Bfloat());
    case syncline::nccl::kNcclFloat8E4M3:
      return function(Float8E4M3());
    case syncline::nccl::kNcclFloat8E5M2:
      return function(Float8E5M2());
  }
}

}  // namespace

size_t SizeOf(NcclDataType dtype) {
  size_t size = 0;
  WithType(dtype, [&](auto type) { size = sizeof(typename decltype(type)::Bits); });
  return size;
}

void Reduce(NcclDataType dtype, NcclRedOp op, void* to, const std::vector<const void*>& inputs,
            size_t count) {
  WithType(dtype, [&](auto type) {
    using Type = decltype(type);
    using Wide = typename Type::Wide;
    for (size_t i = 0; i < count; ++i) {
      Wide result = LoadAt<Type>(inputs[0], i);
      for (size_t rank = 1; rank < inputs.size(); ++rank) {
        const Wide next = LoadAt<Type>(inputs[rank], i);
        switch (op) {
          case syncline::nccl::kNcclSum:
          case syncline::nccl::kNcclAvg:
            result = WrappedSum(result, next);
            break;
          case syncline::nccl::kNcclProd:
            result = WrappedProduct(result, next);
            break;
          case syncline::nccl::kNcclMax:
            result = std::max(result, next);
            break;
          case syncline::nccl::kNcclMin:
            result = std::min(result, next);
            break;
        }
      }
      // The cast keeps signed quotients signed.
      if (op == syncline::nccl::kNcclAvg) {
        if constexpr (std::is_integral_v<Wide>) {
          using Quotient = std::conditional_t<std::is_signed_v<Wide>, int64_t, uint64_t>;
          result = static_cast<Wide>(Quotient{result} / static_cast<Quotient>(inputs.size()));
        } else {
          result /= static_cast<Wide>(inputs.size());
        }
      }
      StoreAt<Type>(to, i, result);
    }
  });
}

void Scale(NcclDataType dtype, const void* scalar, void* to, const void* from, size_t count) {
  WithType(dtype, [&](auto type) {
    using Type = decltype(type);
    const auto factor = LoadAt<Type>(scalar, 0);
    for (size_t i = 0; i < count; ++i) {
      StoreAt<Type>(to, i, WrappedProduct(LoadAt<Type>(from, i), factor));
    }
  });
}

double ToDouble(NcclDataType dtype, const void* element) {
  double value = 0;
  WithType(dtype,
           [&](auto type) { value = static_cast<double>(LoadAt<decltype(type)>(element, 0)); });
  return value;
}

void FromDouble(NcclDataType dtype, double value, void* element) {
  WithType(dtype, [&](auto type) {
    using Type = decltype(type);
    StoreAt<Type>(element, 0, static_cast<typename Type::Wide>(value));
  });
}

}  // namespace fake_nccl
