#include "launch/heartbeat_monitor.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/clock.h"

namespace syncline::launch {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr absl::Duration kLimit = absl::Seconds(60);

class FakeClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

class HealthTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(watch_.Watch(rank, File(rank)).ok());
  }
  void TearDown() override {
    for (int rank = 0; rank < 2; ++rank) unlink(File(rank).c_str());
  }

  std::string File(int rank) { return absl::StrCat(testing::TempDir(), "/heartbeat_", rank); }

  // Sets the file's time to `ago` before now, by the wall clock.
  void Beat(int rank, absl::Duration ago = absl::ZeroDuration()) {
    const timespec when = absl::ToTimespec(absl::Now() - ago + absl::Microseconds(++beats_));
    const timespec times[] = {when, when};
    ASSERT_EQ(utimensat(AT_FDCWD, File(rank).c_str(), times, 0), 0);
  }

  FakeClock clock_;
  HeartbeatMonitor watch_{kLimit, clock_};
  int beats_ = 0;
};

TEST_F(HealthTest, TheStartCountsAsAHeartbeat) {
  EXPECT_EQ(watch_.Age(0), absl::ZeroDuration());
  clock_.Advance(kLimit - absl::Milliseconds(1));
  EXPECT_THAT(watch_.Check(), IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  const auto overdue = watch_.Check();
  ASSERT_EQ(overdue.size(), 2u);
  EXPECT_EQ(overdue[0].local_rank, 0);
  EXPECT_EQ(overdue[0].signal, SIGABRT);
  EXPECT_THAT(overdue[0].reason,
              HasSubstr("has made no progress for 60 s (limit --health-timeout=60)"));
  EXPECT_THAT(overdue[0].reason, HasSubstr("no heartbeat since its start"));
}

TEST_F(HealthTest, OnlyWorkersWithoutHeartbeatAreOverdue) {
  clock_.Advance(kLimit - absl::Seconds(1));
  Beat(1);
  EXPECT_THAT(watch_.Check(), IsEmpty());
  EXPECT_LT(*watch_.Age(1), kLimit / 2);
  clock_.Advance(absl::Seconds(1));
  const auto overdue = watch_.Check();
  ASSERT_EQ(overdue.size(), 1u);
  EXPECT_EQ(overdue[0].local_rank, 0);
  clock_.Advance(kLimit);
  const auto later = watch_.Check();
  ASSERT_EQ(later.size(), 2u);
  EXPECT_THAT(later[1].reason, Not(HasSubstr("since its start")));
}

TEST_F(HealthTest, SigkillFollowsSigabrtOnce) {
  watch_.Forget(1);
  clock_.Advance(kLimit);
  ASSERT_EQ(watch_.Check().size(), 1u);
  EXPECT_EQ(watch_.deadline(), clock_.Now() + HeartbeatMonitor::kAbortGrace);
  EXPECT_THAT(watch_.Check(), IsEmpty());
  clock_.Advance(HeartbeatMonitor::kAbortGrace);
  const auto overdue = watch_.Check();
  ASSERT_EQ(overdue.size(), 1u);
  EXPECT_EQ(overdue[0].signal, SIGKILL);
  clock_.Advance(kLimit);
  EXPECT_THAT(watch_.Check(), IsEmpty());
}

TEST_F(HealthTest, FilesAreLookedAtFourTimesPerLimit) {
  EXPECT_EQ(watch_.deadline(), clock_.Now() + kLimit / 4);
  clock_.Advance(kLimit / 4);
  watch_.Check();
  EXPECT_EQ(watch_.deadline(), clock_.Now() + kLimit / 4);
  clock_.Advance(kLimit / 2);
  watch_.Check();
  EXPECT_EQ(watch_.deadline(), clock_.Now() + kLimit / 4);
}

TEST_F(HealthTest, AWallClockThatIsSetKillsNobody) {
  clock_.Advance(kLimit / 4);
  Beat(0, absl::Hours(2));   // It was set forward.
  Beat(1, -absl::Hours(2));  // It was set back.
  EXPECT_THAT(watch_.Check(), IsEmpty());
  EXPECT_LE(*watch_.Age(0), kLimit / 4);
  EXPECT_EQ(*watch_.Age(1), absl::ZeroDuration());
}

TEST_F(HealthTest, NobodyIsWatchedAfterTheEnd) {
  watch_.Forget(0);
  watch_.Forget(1);
  EXPECT_EQ(watch_.deadline(), absl::InfiniteFuture());
  clock_.Advance(10 * kLimit);
  EXPECT_THAT(watch_.Check(), IsEmpty());
  EXPECT_FALSE(watch_.Age(0).has_value());
}

TEST_F(HealthTest, AWorkerThatStartsAnewHasItsTimeAgain) {
  clock_.Advance(kLimit);
  ASSERT_EQ(watch_.Check().size(), 2u);
  ASSERT_TRUE(watch_.Watch(0, File(0)).ok());
  watch_.Forget(1);
  EXPECT_THAT(watch_.Check(), IsEmpty());
  EXPECT_EQ(watch_.Age(0), absl::ZeroDuration());
}

TEST_F(HealthTest, WithoutALimitNothingIsMadeAndNobodyIsOverdue) {
  HeartbeatMonitor off(absl::InfiniteDuration(), clock_);
  EXPECT_FALSE(off.enabled());
  const std::string file = testing::TempDir() + "/never";
  ASSERT_TRUE(off.Watch(0, file).ok());
  EXPECT_NE(access(file.c_str(), F_OK), 0);
  EXPECT_EQ(off.deadline(), absl::InfiniteFuture());
}

TEST_F(HealthTest, AFileThatCannotBeMadeIsAnError) {
  EXPECT_THAT(watch_.Watch(0, "/nowhere/beat").message(), HasSubstr("/nowhere/beat"));
}

}  // namespace
}  // namespace syncline::launch
