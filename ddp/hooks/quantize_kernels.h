// Affine quantisation to 8 bits.
#ifndef SYNCLINE_DDP_HOOKS_QUANTIZE_KERNELS_H_
#define SYNCLINE_DDP_HOOKS_QUANTIZE_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace syncline::ddp {

// The byte q stands for scale * (q - zero). T is float or double.
template <typename T>
struct Quantizer {
  T scale;
  T zero;  // A whole number from 0 to 255, so that zeros are exact.
};

// Quantises in[0], ..., in[count - 1] between their extremes, or 0 where that lies outside: errors
// are at most `scale`. If any is infinite or NaN, so is everything that the bytes stand for.
template <typename T>
Quantizer<T> Quantize(const T* in, uint8_t* out, size_t count);

// What the bytes stand for, times `factor`.
template <typename T>
void Dequantize(const Quantizer<T>& quantizer, const uint8_t* in, T factor, T* out, size_t count);

// The same, added to what `out` holds.
template <typename T>
void AddDequantized(const Quantizer<T>& quantizer, const uint8_t* in, T factor, T* out,
                    size_t count);

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_HOOKS_QUANTIZE_KERNELS_H_
