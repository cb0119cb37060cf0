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

// Copies up to kFewBytes. It loads no words that span several stores of fewer bytes: such a load
// waits until these have left the core.
inline constexpr size_t kFewBytes = 24;
inline void CopyWords(void* to, const void* from, size_t bytes) {
  constexpr size_t kWord = 8;
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  if (bytes >= kWord) {
    std::memcpy(target, source, kWord);
    if (bytes >= 2 * kWord) std::memcpy(target + kWord, source + kWord, kWord);
    if (bytes >= kFewBytes) {
      std::memcpy(target + 2 * kWord, source + 2 * kWord, kWord);
      return;
    }
    const size_t copied = bytes >= 2 * kWord ? 2 * kWord : kWord;
    bytes -= copied;
    target += copied;
    source += copied;
  }
  if (bytes == kWord / 2) {
    std::memcpy(target, source, kWord / 2);
  } else if (bytes > 0) {
    std::memcpy(target, source, bytes);
  }
}

// Copies as CopyBytes does, which is no function call for a few elements.
inline void CopyFew(void* to, const void* from, size_t bytes) {
  if (bytes > kFewBytes) {
    tensor::CopyBytes(to, from, bytes);
  } else {
    CopyWords(to, from, bytes);
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
