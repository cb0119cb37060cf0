// Ranges of a tensor's bytes.
#ifndef SYNCLINE_BACKENDS_SHM_BYTE_RANGE_H_
#define SYNCLINE_BACKENDS_SHM_BYTE_RANGE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/tensor/copy_bytes.h"
#include "syncline/tensor.h"

namespace syncline::shm {

inline char* Bytes(const Tensor& tensor) { return tensor.data_as<char>(); }

inline size_t CeilDiv(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit; }

// Copies as CopyBytes does, which is no function call for a few elements. Nor does it load words
// that span several stores of fewer bytes: such a load waits until these have left the core.
inline void CopyFew(void* to, const void* from, size_t bytes) {
  constexpr size_t kWord = 8, kMaxWords = 3;
  if (bytes > kMaxWords * kWord) {
    tensor::CopyBytes(to, from, bytes);
    return;
  }
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  for (; bytes >= kWord; bytes -= kWord, target += kWord, source += kWord) {
    std::memcpy(target, source, kWord);
  }
  if (bytes == kWord / 2) {
    std::memcpy(target, source, kWord / 2);
  } else if (bytes > 0) {
    std::memcpy(target, source, bytes);
  }
}

// Copies unless both are the same memory, which is how callers pass a tensor in place.
inline void Copy(void* to, const void* from, size_t bytes) {
  if (to == from) return;
  if (bytes <= 8) return CopyFew(to, from, bytes);
  const auto target = reinterpret_cast<uintptr_t>(to), source = reinterpret_cast<uintptr_t>(from);
  const bool overlap = target < source + bytes && source < target + bytes;
  if (overlap) {
    std::memmove(to, from, bytes);
  } else {
    tensor::CopyBytes(to, from, bytes);
  }
}

// The k-th chunk of `bytes`: empty beyond the end.
struct ByteRange {
  ByteRange(size_t bytes, size_t chunk, uint64_t k)
      : begin(std::min(bytes, k * chunk)), size(std::min(chunk, bytes - begin)) {}

  size_t begin, size;
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_BYTE_RANGE_H_
