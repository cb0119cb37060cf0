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

TEST(CopyBytesTest, CopiesAllAndNoMoreOnEveryInstructionSet) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    CopyAll();
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(CopyBytesTest, NothingMayBeNowhere) { CopyBytes(nullptr, nullptr, 0); }

}  // namespace
}  // namespace syncline::tensor
