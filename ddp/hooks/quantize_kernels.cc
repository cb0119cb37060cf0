#include "ddp/hooks/quantize_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace syncline::ddp {
namespace {

constexpr size_t kLanes = 16;  // Independent, so that the compiler can use vectors.

template <typename T>
struct Range {
  T lowest = 0;
  T highest = 0;
  bool is_finite = true;
};

template <typename T>
Range<T> RangeOf(const T* in, size_t count) {
  T lowest[kLanes] = {}, highest[kLanes] = {}, poison[kLanes] = {};
  const size_t whole = count - count % kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      const T x = in[i + j];
      lowest[j] = x < lowest[j] ? x : lowest[j];
      highest[j] = x > highest[j] ? x : highest[j];
      poison[j] += x * 0;  // NaN from the first x on that is not finite.
    }
  }
  for (size_t i = whole; i < count; ++i) {
    lowest[0] = std::min(lowest[0], in[i]);
    highest[0] = std::max(highest[0], in[i]);
    poison[0] += in[i] * 0;
  }
  Range<T> range;
  for (size_t j = 0; j < kLanes; ++j) {
    range.lowest = std::min(range.lowest, lowest[j]);
    range.highest = std::max(range.highest, highest[j]);
    range.is_finite = range.is_finite && poison[j] == 0;
  }
  return range;
}

}  // namespace

template <typename T>
Quantizer<T> Quantize(const T* in, uint8_t* out, size_t count) {
  const Range<T> range = RangeOf(in, count);
  const T scale = range.highest / 255 - range.lowest / 255;  // Their difference may be infinite.
  if (!range.is_finite || scale < std::numeric_limits<T>::min()) {
    std::fill(out, out + count, 0);
    const T nan = std::numeric_limits<T>::quiet_NaN();
    return range.is_finite ? Quantizer<T>{0, 0} : Quantizer<T>{nan, 0};
  }
  const T inverse = 1 / scale;
  const T zero = std::round(-range.lowest * inverse);
  for (size_t i = 0; i < count; ++i) {
    T place = in[i] * inverse + (zero + T(0.5));
    place = place < T(0.5) ? T(0.5) : place;
    place = place > T(255.5) ? T(255.5) : place;
    out[i] = static_cast<uint8_t>(static_cast<int32_t>(place));
  }
  return {scale, zero};
}

template <typename T>
void Dequantize(const Quantizer<T>& quantizer, const uint8_t* in, T factor, T* out, size_t count) {
  const T scale = quantizer.scale * factor, zero = quantizer.zero;
  for (size_t i = 0; i < count; ++i) out[i] = scale * (static_cast<T>(in[i]) - zero);
}

template <typename T>
void AddDequantized(const Quantizer<T>& quantizer, const uint8_t* in, T factor, T* out,
                    size_t count) {
  const T scale = quantizer.scale * factor, zero = quantizer.zero;
  for (size_t i = 0; i < count; ++i) out[i] += scale * (static_cast<T>(in[i]) - zero);
}

template Quantizer<float> Quantize(const float*, uint8_t*, size_t);
template Quantizer<double> Quantize(const double*, uint8_t*, size_t);
template void Dequantize(const Quantizer<float>&, const uint8_t*, float, float*, size_t);
template void Dequantize(const Quantizer<double>&, const uint8_t*, double, double*, size_t);
template void AddDequantized(const Quantizer<float>&, const uint8_t*, float, float*, size_t);
template void AddDequantized(const Quantizer<double>&, const uint8_t*, double, double*, size_t);

}  // namespace syncline::ddp
