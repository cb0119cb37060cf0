#include "core/tensor/copy_bytes.h"

#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/tensor/copy_bytes.cc"
#include "hwy/foreach_target.h"  // Includes this file once for each instruction set.
// Behind hwy/foreach_target.h:
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncline::tensor {
namespace HWY_NAMESPACE {

// Of so many bytes, which may lie in main memory, the page after the next is looked up in the page
// tables while one is copied: the processor fetches lines ahead within a page only. Copies of 16
// MiB and more take 0.9 of the time. Where all is in a cache, that would cost 2 %.
constexpr size_t kLookAheadMinBytes = 512 << 10;
constexpr size_t kPage = 4 << 10;
constexpr size_t kLookAhead = 2 * kPage;

namespace hn = hwy::HWY_NAMESPACE;

// Of at least eight vectors.
void CopyHere(uint8_t* to, const uint8_t* from, size_t bytes) {
  const hn::ScalableTag<uint8_t> tag;
  const size_t lanes = hn::Lanes(tag);
  const auto copy_four = [&](size_t at) HWY_ATTR {
    const auto a = hn::LoadU(tag, from + at);
    const auto b = hn::LoadU(tag, from + at + lanes);
    const auto c = hn::LoadU(tag, from + at + 2 * lanes);
    const auto d = hn::LoadU(tag, from + at + 3 * lanes);
    hn::StoreU(a, tag, to + at);
    hn::StoreU(b, tag, to + at + lanes);
    hn::StoreU(c, tag, to + at + 2 * lanes);
    hn::StoreU(d, tag, to + at + 3 * lanes);
  };
  // The first four and the last overlap those between, which begin at multiples of their size in
  // `to`.
  copy_four(0);
  size_t at = lanes - reinterpret_cast<uintptr_t>(to) % lanes;
  while (bytes >= kLookAheadMinBytes && at + kLookAhead < bytes) {
    __builtin_prefetch(from + at + kLookAhead);
    __builtin_prefetch(to + at + kLookAhead, /*rw=*/1);
    for (const size_t end = at + kPage; at < end; at += 4 * lanes) copy_four(at);
  }
  for (; at + 4 * lanes < bytes; at += 4 * lanes) copy_four(at);
  copy_four(bytes - 4 * lanes);
}

}  // namespace HWY_NAMESPACE
}  // namespace syncline::tensor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace syncline::tensor {

HWY_EXPORT(CopyHere);

void CopyManyBytes(void* to, const void* from, size_t bytes) {
  // Eight vectors of any processor.
  static_assert(kLibraryMaxBytes >= 8 * 256);
  HWY_DYNAMIC_DISPATCH(CopyHere)(static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from),
                                 bytes);
}

}  // namespace syncline::tensor

#endif  // HWY_ONCE
