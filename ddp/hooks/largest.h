// The largest elements of a vector, and their sum with another vector.
#ifndef SYNCLINE_DDP_HOOKS_LARGEST_H_
#define SYNCLINE_DDP_HOOKS_LARGEST_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace syncline::ddp {

// The indices of the `k` elements that are largest in absolute value, in increasing order; of equal
// ones the first are chosen. NaN is larger than infinity. In linear time. Requires k <= count and
// count < 2^32. T is float or double.
template <typename T>
std::vector<uint32_t> LargestElements(const T* values, size_t count, size_t k);

// Adds factor * values[i] to to[indices[i]], for i < k. Nothing where an index is not below
// `count`, as those of another rank may be: then returns false, and else true. T is float or
// double.
template <typename T>
bool AddAtIndices(T factor, const uint32_t* indices, const T* values, size_t k, T* to,
                  size_t count);

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_HOOKS_LARGEST_H_
