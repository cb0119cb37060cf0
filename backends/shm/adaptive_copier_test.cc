#include "backends/shm/adaptive_copier.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace syncline::shm {
namespace {

// Calls copy(to, from, bytes) with many sizes and alignments.
template <typename Copy>
void CheckCopies(const Copy& copy) {
  std::vector<char> from(40000);
  std::iota(from.begin(), from.end(), 0);
  for (size_t i = 0; i < 3000; ++i) {
    const size_t bytes = i % 3 == 0 ? i : i * 11, at = i % 131;
    const auto source = from.begin() + i % 17;
    std::vector<char> to(bytes + 200, 'x');
    copy(to.data() + at, &*source, bytes);
    ASSERT_TRUE(std::equal(to.begin() + at, to.begin() + at + bytes, source)) << bytes;
    ASSERT_EQ(std::count(to.begin(), to.begin() + at, 'x'), static_cast<ptrdiff_t>(at));
    ASSERT_EQ(std::count(to.begin() + at + bytes, to.end(), 'x'), static_cast<ptrdiff_t>(200 - at));
  }
}

TEST(NontemporalCopyTest, CopiesTheBytesThatItIsGivenAndNoOthers) { CheckCopies(&NontemporalCopy); }

TEST(AdaptiveCopierTest, CopiesTheBytesThatItIsGivenAndNoOthers) {
  AdaptiveCopier copier;
  CheckCopies([&](void* to, const void* from, size_t bytes) { copier.Copy(to, from, bytes); });
}

}  // namespace
}  // namespace syncline::shm
