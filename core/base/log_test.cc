#include "syncline/log.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

// The BUILD file sets SYNCLINE_LOG_LEVEL=info: the level is read once.

TEST(LogTest, ALineHasLevelTimeAndProcess) {
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kWarning, "it {is} %s");
  const std::string pattern =
      "\\[W [0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6} " + std::to_string(getpid()) + "\\] it .is. %s\n";
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::MatchesRegex(pattern));
  EXPECT_THAT(FormatLogLine(LogLevel::kWarning, "it {is} %s") + "\n",
              ::testing::MatchesRegex(pattern));
}

TEST(LogTest, OnlyWhatIsAtLeastAsSevereAsTheLevelIsWritten) {
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kDebug, "debug line");
  Log(LogLevel::kInfo, "info line");
  Log(LogLevel::kError, "error line");
  const std::string written = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(written, ::testing::Not(::testing::HasSubstr("debug line")));
  EXPECT_THAT(written, ::testing::HasSubstr("info line"));
  EXPECT_THAT(written, ::testing::HasSubstr("[E "));
}

TEST(LogTest, ASinkTakesThePlaceOfStderrUntilItIsRemoved) {
  std::vector<std::string> lines;
  SetLogSink([&lines](LogLevel level, absl::string_view message) {
    lines.push_back((level == LogLevel::kError ? "error: " : "other: ") + std::string(message));
  });
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kDebug, "hidden");
  Log(LogLevel::kError, "seen");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(lines, ::testing::ElementsAre("error: seen"));
  SetLogSink(nullptr);
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kError, "on stderr");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("on stderr"));
  EXPECT_EQ(lines.size(), 1u);
}

}  // namespace
}  // namespace syncline
