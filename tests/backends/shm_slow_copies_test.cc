// Which way AdaptiveCopier copies after copies that were slow, as between cores without a common
// cache.
#include <cstddef>
#include <thread>
#include <vector>

#include "backends/shm/adaptive_copier.h"
#include "backends/shm/thresholds.h"
#include "gtest/gtest.h"
#include "tests/support/page_trap.h"

namespace syncline::shm {
namespace {

class SlowCopiesTest : public testing::Test {
 protected:
  void Copy() { copier_.Copy(to_.data(), from_.data(), from_.size()); }

  // A thread that another one has to wake takes longer than any copy that counts as fast.
  void CopySlowly() {
    PageTrap trap(from_.data() + from_.size() / 2);
    std::thread waker([&] {
      trap.AwaitHeld();
      trap.Release();
    });
    Copy();
    waker.join();
  }

  AdaptiveCopier copier_;
  std::vector<char> from_ = std::vector<char>(16 * kTimedCopyMinBytes, 'x');
  std::vector<char> to_ = std::vector<char>(16 * kTimedCopyMinBytes);
};

TEST_F(SlowCopiesTest, AfterSomeTheNextGoPastTheCaches) {
  for (int i = 0; i < kManySlowTrials; ++i) {
    EXPECT_FALSE(copier_.bypasses_caches()) << i;
    CopySlowly();
  }
  for (int i = 0; i < kCopyTrialInterval; ++i) {
    EXPECT_TRUE(copier_.bypasses_caches()) << i;
    Copy();
  }
  EXPECT_FALSE(copier_.bypasses_caches());  // A trial.
  CopySlowly();
  EXPECT_TRUE(copier_.bypasses_caches());
  EXPECT_EQ(from_, to_);
}

TEST_F(SlowCopiesTest, CmaIsPreferredToCopiesThatAreAlwaysSlow) {
  for (int i = 0; i < kSlowTrials; ++i) {
    EXPECT_FALSE(copier_.PrefersCma()) << i;
    while (copier_.bypasses_caches()) Copy();
    CopySlowly();
  }
  for (int i = 0; i < kCmaTrialInterval; ++i) {
    EXPECT_TRUE(copier_.PrefersCma()) << i;
    // Operations that are not made by CMA do not pay for trials in between.
    EXPECT_TRUE(copier_.bypasses_caches()) << i;
  }
  EXPECT_FALSE(copier_.PrefersCma());  // A trial.
  EXPECT_FALSE(copier_.bypasses_caches());
  CopySlowly();
  EXPECT_TRUE(copier_.PrefersCma());
}

}  // namespace
}  // namespace syncline::shm
