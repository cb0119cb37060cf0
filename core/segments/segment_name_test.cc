#include "core/segments/segment_name.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/host.h"
#include "core/base/process_state.h"
#include "gtest/gtest.h"

namespace syncline::segments {
namespace {

TEST(SegmentNameTest, IsReadAsItWasWritten) {
  const SegmentName name{ManagerName(base::IdentifyThisProcess().value()), 12, 34, 56};
  const auto read = SegmentName::Parse(name.ToString());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->ToString(), name.ToString());
  EXPECT_EQ(read->manager, name.manager);
  EXPECT_EQ(read->pid, 12);
  EXPECT_EQ(read->client, 34u);
  EXPECT_EQ(read->number, 56u);
}

TEST(SegmentNameTest, IsNothingElse) {
  for (const char* text : {"", "syncline-", "syncline-a-1-2-3-4-5", "other-a-1-2-3-4-5-6",
                           "syncline-a-1-2-3-4-5-x", "syncline-../a-1-2-3-4-5-6"}) {
    EXPECT_FALSE(SegmentName::Parse(text).has_value()) << text;
  }
}

TEST(SegmentNameTest, SegmentsOfDeadManagersAreSweptAndNoOthers) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/sweep", getpid());
  std::filesystem::create_directory(folder);
  const Peer self = base::IdentifyThisProcess().value();
  Peer dead = self;
  dead.pid = fork();
  if (dead.pid == 0) _exit(0);
  dead.started = base::ReadProcess(dead.pid).value().started;
  waitpid(dead.pid, nullptr, 0);
  Peer reused = self;  // Its pid is this process's now.
  reused.started -= 1;
  Peer rebooted = self;
  rebooted.identity = "00000000" + self.identity.substr(8);
  Peer elsewhere = dead;
  elsewhere.pid_namespace = "pid:[1]";
  for (const Peer& peer : {self, dead, reused, rebooted, elsewhere}) {
    std::ofstream(absl::StrCat(folder, "/", SegmentName{ManagerName(peer), 1, 2, 3}.ToString()));
  }
  std::ofstream(folder + "/syncline-of-another-kind");
  EXPECT_EQ(SweepStale(self, folder), 3);
  EXPECT_TRUE(std::filesystem::exists(
      absl::StrCat(folder, "/", SegmentName{ManagerName(self), 1, 2, 3}.ToString())));
  EXPECT_TRUE(std::filesystem::exists(
      absl::StrCat(folder, "/", SegmentName{ManagerName(elsewhere), 1, 2, 3}.ToString())));
  EXPECT_EQ(SweepManager(ManagerName(self), folder), 1);
  EXPECT_EQ(SweepStale(self, folder + "/none"), 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace syncline::segments
