#include "syncline/interrupt.h"

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"

namespace syncline {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

absl::Status Interrupted() { return InterruptedError("interrupted"); }

const bool kNever = false;
const bool kAlready = true;

TEST(InterruptTest, AWaitEndsOnceItsCheckSaysSo) {
  absl::Mutex mutex;
  int checks = 0;
  const auto check = [&] {
    mutex.AssertNotHeld();
    return ++checks < 3 ? absl::OkStatus() : Interrupted();
  };
  const InterruptScope scope(check);
  const Deadline deadline(kLong);
  absl::MutexLock lock(&mutex);
  EXPECT_FALSE(deadline.AwaitInterruptibly(mutex, absl::Condition(&kNever)));
  EXPECT_FALSE(deadline.Expired());
  EXPECT_EQ(Interruption(), Interrupted());
  EXPECT_EQ(scope.status(), Interrupted());
  EXPECT_EQ(checks, 3);
}

TEST(InterruptTest, AWaitThatIsOverDoesNotAsk) {
  const auto check = [] {
    ADD_FAILURE();
    return absl::OkStatus();
  };
  const InterruptScope scope(check);
  absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  EXPECT_TRUE(Deadline(kLong).AwaitInterruptibly(mutex, absl::Condition(&kAlready)));
  EXPECT_TRUE(CheckInterrupt().ok());  // Nor does the first look.
}

TEST(InterruptTest, AfterAnInterruptAllWaitsOfTheScopeEndAndThoseOfNoOther) {
  {
    const InterruptScope scope(&Interrupted);
    EXPECT_EQ(SleepInterruptibly(kLong), Interrupted());
    EXPECT_EQ(CheckInterrupt(), Interrupted());
    EXPECT_EQ(SleepInterruptibly(kLong), Interrupted());
    const Uninterruptible shield;
    EXPECT_TRUE(CheckInterrupt().ok());
    EXPECT_TRUE(SleepInterruptibly(2 * kInterruptInterval).ok());
  }
  EXPECT_FALSE(InterruptScope::IsOpen());
  EXPECT_TRUE(Interruption().ok());
}

TEST(InterruptTest, WithoutAScopeAWaitLastsUntilItsDeadline) {
  absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  const Deadline deadline(3 * kInterruptInterval);
  int slices = 0;
  EXPECT_FALSE(deadline.AwaitInterruptibly(mutex, absl::Condition(&kNever), [&] { ++slices; }));
  EXPECT_TRUE(deadline.Expired());
  EXPECT_GE(slices, 1);
}

}  // namespace
}  // namespace syncline
