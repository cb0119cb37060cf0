// Ranges of a tensor's bytes.
#ifndef SYNCLINE_BACKENDS_SHM_BYTE_RANGE_H_
#define SYNCLINE_BACKENDS_SHM_BYTE_RANGE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "syncline/tensor.h"

namespace syncline::shm {

inline char* Bytes(const Tensor& tensor) { return tensor.data_as<char>(); }

inline size_t CeilDiv(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit; }

// Copies unless both are the same memory, which is how callers pass a tensor in place.
inline void Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// The k-th chunk of `bytes`: empty beyond the end.
struct ByteRange {
  ByteRange(size_t bytes, size_t chunk, uint64_t k)
      : begin(std::min(bytes, k * chunk)), size(std::min(chunk, bytes - begin)) {}

  size_t begin, size;
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_BYTE_RANGE_H_
