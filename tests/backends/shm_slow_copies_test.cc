// Which way AdaptiveCopier copies after copies that were slow, as between cores without a common
// cache.
#include <cstddef>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/shm/adaptive_copier.h"
#include "backends/shm/thresholds.h"
#include "gtest/gtest.h"
#include "tests/support/page_trap.h"

namespace syncline::shm {
namespace {

constexpr size_t kPage = 4 << 10;

class SlowCopiesTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = kTimedCopyMinBytes;

  void Copy() { copier_.Copy(to_, from_, kBytes); }

  void CopySlowly() {
    PageTrap trap(from_);
    std::thread waker([&] {
      trap.AwaitHeld();
      absl::SleepFor(absl::Milliseconds(1));
      trap.Release();
    });
    Copy();
    waker.join();
  }

  AdaptiveCopier copier_;
  alignas(kPage) char from_[(kBytes + kPage - 1) / kPage * kPage] = "what is copied";
  char to_[kBytes] = {};
};

TEST_F(SlowCopiesTest, AfterSomeTheNextGoPastTheCaches) {
  for (int i = 0; i < kManySlowTrials; ++i) {
    ASSERT_FALSE(copier_.bypasses_caches()) << i;
    CopySlowly();
  }
  for (int i = 0; i < kCopyTrialInterval; ++i) {
    ASSERT_TRUE(copier_.bypasses_caches()) << i;
    Copy();
  }
  EXPECT_FALSE(copier_.bypasses_caches());  // A trial.
  CopySlowly();
  EXPECT_TRUE(copier_.bypasses_caches());
  EXPECT_STREQ(to_, "what is copied");
}

TEST_F(SlowCopiesTest, CmaIsPreferredToCopiesThatAreSlow) {
  for (int i = 0; i < kManySlowTrials; ++i) {
    ASSERT_FALSE(copier_.PrefersCma()) << i;
    CopySlowly();
  }
  for (int i = 0; i < kCmaTrialInterval; ++i) {
    ASSERT_TRUE(copier_.PrefersCma()) << i;
    // Operations that are not made by CMA do not pay for trials in between.
    ASSERT_TRUE(copier_.bypasses_caches()) << i;
  }
  EXPECT_FALSE(copier_.PrefersCma());  // A trial.
  EXPECT_FALSE(copier_.bypasses_caches());
  CopySlowly();
  EXPECT_TRUE(copier_.PrefersCma());
}

}  // namespace
}  // namespace syncline::shm
