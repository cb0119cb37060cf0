// Which elements are largest.
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

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_HOOKS_LARGEST_H_
