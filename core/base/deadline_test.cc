// The functions that tell the time are replaced here, so that the wall clock of this program
// differs from the kernel's: as for a wait during which the clock has been set.
#include "syncline/deadline.h"

#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

#include <atomic>
#include <chrono>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace {

std::atomic<int> seconds_ahead{0};

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  using Real = int (*)(clockid_t, timespec*);
  static const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = real(clock, time);
  if (clock == CLOCK_REALTIME) time->tv_sec += seconds_ahead;
  return result;
}

extern "C" int gettimeofday(timeval* time, void* zone) noexcept {
  using Real = int (*)(timeval*, void*);
  static const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "gettimeofday"));
  const int result = real(time, zone);
  time->tv_sec += seconds_ahead;
  return result;
}

namespace syncline {
namespace {

constexpr absl::Duration kShort = absl::Milliseconds(300);

const bool kNever = false;

TEST(DeadlineTest, WhatRemainsIsNeverNegative) {
  EXPECT_EQ(Deadline(absl::ZeroDuration()).Remaining(), absl::ZeroDuration());
  EXPECT_TRUE(Deadline(-absl::Seconds(1)).Expired());
  EXPECT_FALSE(Deadline(absl::InfiniteDuration()).Expired());
  EXPECT_EQ(Deadline(absl::InfiniteDuration()).Remaining(), absl::InfiniteDuration());
}

TEST(DeadlineTest, OneThatCountsFromTheFirstWaitCountsFromThere) {
  const Deadline deadline = Deadline::FromFirstWait(absl::Hours(1));
  absl::SleepFor(absl::Milliseconds(2));
  EXPECT_EQ(deadline.Remaining(), absl::Hours(1));
  absl::SleepFor(absl::Milliseconds(2));
  EXPECT_LT(deadline.Remaining(), absl::Hours(1));
}

// Where a wait counted on the kernel's wall clock, it would last an hour here, or no time at all.
TEST(DeadlineTest, SettingTheWallClockNeitherStretchesAWaitNorCutsItShort) {
  absl::Mutex mutex;
  absl::CondVar changed;
  for (const int ahead : {0, 3600, -3600}) {
    SCOPED_TRACE(ahead);
    seconds_ahead = ahead;
    const auto began = std::chrono::steady_clock::now();
    {
      absl::MutexLock lock(&mutex);
      EXPECT_FALSE(Deadline(kShort).Await(mutex, absl::Condition(&kNever)));
      // Abseil alone, as others wait.
      EXPECT_FALSE(mutex.AwaitWithTimeout(absl::Condition(&kNever), kShort));
      EXPECT_TRUE(changed.WaitWithTimeout(&mutex, kShort));
    }
    const auto took = absl::FromChrono(std::chrono::steady_clock::now() - began);
    EXPECT_GE(took, 3 * kShort - absl::Milliseconds(50));
    EXPECT_LT(took, absl::Seconds(60));
  }
  seconds_ahead = 0;
}

}  // namespace
}  // namespace syncline
