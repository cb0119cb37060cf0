// What the kernels know of where they run, and how they reach memory.
#ifndef SYNCLINE_CORE_DEVICE_KERNELS_THREAD_H_
#define SYNCLINE_CORE_DEVICE_KERNELS_THREAD_H_

#include <cstdint>
#include <cstring>

#include "core/device/kernels/elements.h"

namespace syncline::device::kernels {

// Of a block, in every launch.
constexpr uint32_t kThreads = 256;

// One thread of a launch of one dimension.
struct Thread {
  uint32_t block;
  uint32_t blocks;
  uint32_t thread;  // In the block.
  uint32_t threads;

  SYNCLINE_HOST_DEVICE uint64_t index() const {
    return static_cast<uint64_t>(block) * threads + thread;
  }
  SYNCLINE_HOST_DEVICE uint64_t count() const { return static_cast<uint64_t>(blocks) * threads; }
};

// What a thread reads or writes at once, where addresses are multiples of as much.
constexpr uint32_t kVectorBytes = 16;

struct alignas(kVectorBytes) Bytes16 {
  uint32_t words[4];
};

// Requires an address that is a multiple of kVectorBytes; of 4.

SYNCLINE_HOST_DEVICE Bytes16 LoadVector(const void* from) {
  Bytes16 loaded;
#ifdef __CUDA_ARCH__
  const uint4 vector = *static_cast<const uint4*>(from);
  loaded.words[0] = vector.x;
  loaded.words[1] = vector.y;
  loaded.words[2] = vector.z;
  loaded.words[3] = vector.w;
#else
  memcpy(&loaded, __builtin_assume_aligned(from, kVectorBytes), sizeof(loaded));
#endif
  return loaded;
}

SYNCLINE_HOST_DEVICE void StoreVector(const Bytes16& bytes, void* to) {
#ifdef __CUDA_ARCH__
  *static_cast<uint4*>(to) =
      make_uint4(bytes.words[0], bytes.words[1], bytes.words[2], bytes.words[3]);
#else
  memcpy(__builtin_assume_aligned(to, kVectorBytes), &bytes, sizeof(bytes));
#endif
}

SYNCLINE_HOST_DEVICE uint32_t LoadWord(const void* from) {
#ifdef __CUDA_ARCH__
  return *static_cast<const uint32_t*>(from);
#else
  uint32_t word;
  memcpy(&word, __builtin_assume_aligned(from, sizeof(word)), sizeof(word));
  return word;
#endif
}

}  // namespace syncline::device::kernels

#endif  // SYNCLINE_CORE_DEVICE_KERNELS_THREAD_H_
