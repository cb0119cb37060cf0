#include "core/tensor/copy_bytes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace syncline::tensor {
namespace {

// Of all sizes about those where the way changes, for each alignment of both places.
void CopyAll() {
  constexpr size_t kMargin = 64, kPage = 4096;
  std::vector<uint8_t> from(3 * kPage + 4 * kMargin), to(from.size());
  std::iota(from.begin(), from.end(), 1);
  for (const size_t around : {size_t{0}, size_t{200}, size_t{2} << 10, kPage, 3 * kPage}) {
    for (size_t bytes = around < 3 ? 0 : around - 3; bytes < around + 70; bytes += 1 + bytes % 7) {
      for (size_t i = 0; i < kMargin; i += 1 + i % 5) {
        const size_t j = i * 37 % kMargin;
        std::fill(to.begin(), to.end(), 0);
        CopyBytes(to.data() + kMargin + i, from.data() + j, bytes);
        ASSERT_EQ(std::memcmp(to.data() + kMargin + i, from.data() + j, bytes), 0)
            << bytes << " bytes from " << j << " to " << i;
        // And nothing beside.
        ASSERT_EQ(to[kMargin + i - 1], 0) << bytes;
        ASSERT_EQ(to[kMargin + i + bytes], 0) << bytes;
      }
    }
  }
}

// As many as main memory holds, with their ends anywhere in a page.
void CopyManyPages() {
  constexpr size_t kMargin = 64, kMost = (512 << 10) + 3 * 4096;
  std::vector<uint8_t> from(kMost + kMargin), to(kMost + 2 * kMargin);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 2654435761u >> 24);
  for (size_t bytes = (512 << 10) - 1; bytes < kMost; bytes += 1 + bytes % 700) {
    const size_t i = bytes % kMargin, j = bytes * 37 % kMargin;
    std::fill(to.begin(), to.end(), 0);
    CopyBytes(to.data() + kMargin + i - kMargin / 2, from.data() + j, bytes);
    const uint8_t* const copy = to.data() + kMargin + i - kMargin / 2;
    ASSERT_EQ(std::memcmp(copy, from.data() + j, bytes), 0) << bytes;
    ASSERT_EQ(copy[-1], 0) << bytes;
    ASSERT_EQ(copy[bytes], 0) << bytes;
  }
}

TEST(CopyBytesTest, CopiesAllAndNoMoreOnEveryInstructionSet) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    CopyAll();
    CopyManyPages();
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(CopyBytesTest, NothingMayBeNowhere) { CopyBytes(nullptr, nullptr, 0); }

}  // namespace
}  // namespace syncline::tensor
