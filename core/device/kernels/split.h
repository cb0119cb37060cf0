// How the elements of an element-wise kernel are split: into groups that are read as vectors, and
// single ones at both ends.
#ifndef SYNCLINE_CORE_DEVICE_KERNELS_SPLIT_H_
#define SYNCLINE_CORE_DEVICE_KERNELS_SPLIT_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "core/device/kernels/elementwise.h"

namespace syncline::device::kernels {

// Operands of elements of `size` bytes, a power of 2.
struct Operands {
  const void* const* addresses;
  size_t count;
  uint32_t size;
};

// Whether `address`, moved on by `elements` elements of `size` bytes, is a multiple of `alignment`.
inline bool IsAligned(const void* address, uint64_t elements, uint32_t size, uint32_t alignment) {
  return (reinterpret_cast<uintptr_t>(address) + elements * size) % alignment == 0;
}

// Splits `count` elements of all `operands`. A group has as many elements as a vector holds of the
// largest ones; it begins at a multiple of its own size in each operand.
inline Split SplitElements(uint64_t count, std::initializer_list<Operands> operands) {
  uint32_t largest = 1;
  for (const Operands& some : operands) largest = some.size > largest ? some.size : largest;
  const uint32_t group = kVectorBytes / largest;
  const auto all_aligned = [&](uint32_t head, uint32_t elements) {
    for (const Operands& some : operands) {
      for (size_t i = 0; i < some.count; ++i) {
        if (!IsAligned(some.addresses[i], head, some.size, elements * some.size)) return false;
      }
    }
    return true;
  };
  Split split = {count, 0, 0, all_aligned(0, 1) ? 1u : 0u};
  if (split.is_aligned == 0) return split;
  // The first operand says where a group may begin; the others agree or not.
  const Operands& first = *operands.begin();
  uint32_t head = 0;
  while (!IsAligned(first.addresses[0], head, first.size, group * first.size)) ++head;
  if (head >= count || !all_aligned(head, group)) return split;
  split.head = head;
  split.groups = (count - head) / group;
  return split;
}

}  // namespace syncline::device::kernels

#endif  // SYNCLINE_CORE_DEVICE_KERNELS_SPLIT_H_
