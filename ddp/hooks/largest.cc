#include "ddp/hooks/largest.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>

#include "syncline/check.h"

namespace syncline::ddp {
namespace {

// Without the sign, floats are ordered as their bits are.
template <typename T>
auto Magnitude(T value) {
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  Bits bits;
  std::memcpy(&bits, &value, sizeof(T));
  return bits & std::numeric_limits<Bits>::max();
}

constexpr size_t kBins = 1 << 16;

template <typename T>
size_t BinOf(T value) {
  return static_cast<size_t>(Magnitude(value) >> (sizeof(T) * 8 - 17));
}

struct Boundary {
  size_t bin = 0;     // All elements of higher bins are among the k largest,
  size_t needed = 0;  // and as many of this one.
};

template <typename T>
Boundary FindBoundary(const T* values, size_t count, size_t k) {
  std::vector<uint32_t> bins(kBins);
  for (size_t i = 0; i < count; ++i) ++bins[BinOf(values[i])];
  size_t bin = kBins - 1;
  while (bins[bin] < k) k -= bins[bin--];
  return {bin, k};
}

}  // namespace

template <typename T>
std::vector<uint32_t> LargestElements(const T* values, size_t count, size_t k) {
  SYNCLINE_DCHECK(k <= count && count <= std::numeric_limits<uint32_t>::max());
  const Boundary boundary = FindBoundary(values, count, k);
  std::vector<uint32_t> chosen, candidates;
  chosen.reserve(k);
  for (size_t i = 0; i < count; ++i) {
    const size_t bin = BinOf(values[i]);
    if (bin < boundary.bin) continue;
    (bin == boundary.bin ? candidates : chosen).push_back(static_cast<uint32_t>(i));
  }
  const auto is_before = [values](uint32_t a, uint32_t b) {
    const auto left = Magnitude(values[a]), right = Magnitude(values[b]);
    return left != right ? left > right : a < b;
  };
  const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(boundary.needed);
  std::nth_element(candidates.begin(), end, candidates.end(), is_before);
  std::sort(candidates.begin(), end);
  std::vector<uint32_t> merged;
  merged.reserve(k);
  std::merge(chosen.begin(), chosen.end(), candidates.begin(), end, std::back_inserter(merged));
  return merged;
}

template <typename T>
bool AddAtIndices(T factor, const uint32_t* indices, const T* values, size_t k, T* to,
                  size_t count) {
  if (std::any_of(indices, indices + k, [count](uint32_t index) { return index >= count; })) {
    return false;
  }
  for (size_t i = 0; i < k; ++i) to[indices[i]] += factor * values[i];
  return true;
}

template std::vector<uint32_t> LargestElements(const float*, size_t, size_t);
template std::vector<uint32_t> LargestElements(const double*, size_t, size_t);
template bool AddAtIndices(float, const uint32_t*, const float*, size_t, float*, size_t);
template bool AddAtIndices(double, const uint32_t*, const double*, size_t, double*, size_t);

}  // namespace syncline::ddp
