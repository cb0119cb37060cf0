#include "syncline/launcher_heartbeat.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "syncline/log.h"

namespace syncline {
namespace {

std::string PathOf(const std::string& name) { return absl::StrCat(testing::TempDir(), "/", name); }

bool Exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

absl::Time ModifiedAt(const std::string& path) {
  struct stat info;
  EXPECT_EQ(stat(path.c_str(), &info), 0);
  return absl::TimeFromTimespec(info.st_mtim);
}

void MakeOld(const std::string& path) {
  const timespec old[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), old, 0), 0);
}

TEST(HeartbeatTest, ABeatTouchesTheFileAndMakesItIfItIsAbsent) {
  const std::string path = PathOf("absent");
  Heartbeat(path).Beat();
  ASSERT_TRUE(Exists(path));
  MakeOld(path);
  Heartbeat(path).Beat();
  EXPECT_GT(ModifiedAt(path), absl::Now() - absl::Minutes(10));
}

TEST(HeartbeatTest, AFileKeepsWhatIsInIt) {
  const std::string path = PathOf("kept");
  std::ofstream(path) << "text";
  Heartbeat(path).Beat();
  std::string text;
  std::ifstream(path) >> text;
  EXPECT_EQ(text, "text");
}

TEST(HeartbeatTest, ManyBeatsTouchTheFileAtMostTenTimesASecond) {
  const std::string path = PathOf("limited");
  Heartbeat heartbeat(path);
  const absl::Time start = absl::Now();
  int touched = 0;
  for (int i = 0; i < 100'000; ++i) {
    heartbeat.Beat();
    if (ModifiedAt(path) > absl::FromUnixSeconds(1)) ++touched;
    MakeOld(path);
  }
  // A tick of the coarse clock is up to 10 ms.
  EXPECT_LE(touched, 1 + absl::ToDoubleMilliseconds(absl::Now() - start) / 90);
  EXPECT_GE(touched, 1);
}

TEST(HeartbeatTest, ItGoesOnBeating) {
  const std::string path = PathOf("again");
  Heartbeat heartbeat(path);
  heartbeat.Beat();
  MakeOld(path);
  const Deadline deadline(absl::Seconds(20));
  while (ModifiedAt(path) == absl::FromUnixSeconds(1) && !deadline.Expired()) heartbeat.Beat();
  EXPECT_GT(ModifiedAt(path), absl::FromUnixSeconds(1));
}

TEST(HeartbeatTest, TheEnvironmentNamesTheFile) {
  const std::string path = PathOf("named");
  unsetenv("SYNCLINE_HEARTBEAT_FILE");
  Heartbeat::Create()->Beat();
  EXPECT_FALSE(Exists(path));
  setenv("SYNCLINE_HEARTBEAT_FILE", path.c_str(), 1);
  Heartbeat::Create()->Beat();
  unsetenv("SYNCLINE_HEARTBEAT_FILE");
  EXPECT_TRUE(Exists(path));
}

TEST(HeartbeatTest, AFileThatCannotBeTouchedIsToldOnce) {
  std::vector<std::string> lines;
  SetLogSink([&lines](LogLevel, absl::string_view line) { lines.emplace_back(line); });
  Heartbeat heartbeat(PathOf("no such folder/file"));
  const Deadline deadline(absl::Milliseconds(250));
  while (!deadline.Expired()) heartbeat.Beat();
  SetLogSink(nullptr);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("no such folder/file"), std::string::npos);
  EXPECT_NE(lines[0].find("No such file or directory"), std::string::npos);
}

TEST(HeartbeatTest, ThreadsMayShareOne) {
  const std::string path = PathOf("shared");
  Heartbeat heartbeat(path);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&heartbeat] {
      for (int j = 0; j < 1000; ++j) heartbeat.Beat();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Exists(path));
}

}  // namespace
}  // namespace syncline
