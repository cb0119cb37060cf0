#include "core/base/thread.h"

#include <atomic>
#include <memory>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

TEST(RunBoundedTest, ReturnsAfterTheCall) {
  const auto ran = std::make_shared<std::atomic<bool>>(false);
  const absl::Status status = RunBounded("a test", absl::Minutes(1), [ran] {
    absl::SleepFor(absl::Milliseconds(20));
    *ran = true;
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(*ran);
  EXPECT_EQ(ran.use_count(), 1);  // Nothing is left of the call.
}

TEST(RunBoundedTest, LeavesBehindWhatTakesLonger) {
  struct Shared {
    absl::Notification may_end, has_ended;
  };
  const auto shared = std::make_shared<Shared>();
  const absl::Time begin = absl::Now();
  const absl::Status status = RunBounded("a test", absl::Milliseconds(50), [shared] {
    shared->may_end.WaitForNotification();
    shared->has_ended.Notify();
  });
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(50));
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
  EXPECT_EQ(status.message(), "no answer within 50ms");
  // It goes on with what it owns.
  shared->may_end.Notify();
  EXPECT_TRUE(shared->has_ended.WaitForNotificationWithTimeout(absl::Minutes(1)));
}

}  // namespace
}  // namespace syncline::base
