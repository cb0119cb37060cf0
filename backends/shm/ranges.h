// Parts of tensors, in bytes.
#ifndef SYNCLINE_BACKENDS_SHM_RANGES_H_
#define SYNCLINE_BACKENDS_SHM_RANGES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/tensor/tensor.h"

namespace syncline {

inline char* Bytes(const Tensor& tensor) { return tensor.data_as<char>(); }

inline size_t Ceil(size_t bytes, size_t piece) { return (bytes + piece - 1) / piece; }

inline void Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// Of `bytes`, what belongs to the k-th piece.
struct Range {
  Range(size_t bytes, size_t piece, uint64_t k)
      : begin(std::min(bytes, k * piece)), size(std::min(piece, bytes - begin)) {}

  size_t begin, size;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_RANGES_H_
