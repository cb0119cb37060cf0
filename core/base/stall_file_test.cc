// What a launcher finds in the file: launch/stall_reader_test.cc reads it.
#include "core/base/stall_file.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/log.h"

namespace syncline::base {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::Not;

class StallFileTest : public testing::Test {
 protected:
  StallFileTest() : path_(absl::StrCat(testing::TempDir(), "/stalls_", getpid())) {}
  ~StallFileTest() override { unlink(path_.c_str()); }

  std::string Text() const {
    std::ifstream file(path_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  static Stall Example() {
    Stall stall;
    stall.rank = 3;
    stall.operation = "barrier #4";
    stall.missing = {2, 5, 6, 7, 8};
    stall.waited = absl::Seconds(10);
    stall.text = "rank 3 has waited";
    return stall;
  }

  const std::string path_;
};

TEST_F(StallFileTest, HoldsTheWaitsThatLastAndThoseThatHaveEnded) {
  StallFile file(path_);
  const int64_t wait = file.Open();
  EXPECT_THAT(Text(), IsEmpty());  // Nothing is long yet.
  file.Report(wait, Example(), /*is_warning=*/true);
  EXPECT_THAT(Text(), MatchesRegex(absl::StrCat(
                          "\\{\"pid\": ", getpid(),
                          ", \"pid_namespace\": \"pid:.*\", \"time\": [0-9.]*, "
                          "\"waits\": \\[\\{\"id\": 1, \"rank\": 3, \"operation\": \"barrier #4\", "
                          "\"missing\": \"2, 5-8\", \"text\": \"rank 3 has waited\", "
                          "\"waited\": [0-9.]*, \"warnings\": 1, \"ended\": false\\}\\]\\}\n")));
  file.Close(wait);
  EXPECT_THAT(Text(), AllOf(HasSubstr("\"ended\": true"), HasSubstr("\"warnings\": 1,")));
}

TEST_F(StallFileTest, AWaitOfWhichAnotherRankWarnsIsThereWhileItLasts) {
  StallFile file(path_);
  const int64_t wait = file.Open();
  file.Report(wait, Example(), /*is_warning=*/false);
  EXPECT_THAT(Text(), AllOf(HasSubstr("\"ended\": false"), HasSubstr("\"warnings\": 0,")));
  file.Close(wait);
  EXPECT_THAT(Text(), HasSubstr("\"waits\": []"));
}

TEST_F(StallFileTest, AReportThatComesTooLateHasNoEffect) {
  StallFile file(path_);
  const int64_t wait = file.Open();
  file.Close(wait);
  file.Report(wait, Example(), /*is_warning=*/true);
  EXPECT_THAT(Text(), IsEmpty());
}

TEST_F(StallFileTest, IsBoundedWhateverWaits) {
  StallFile file(path_);
  Stall stall = Example();
  stall.operation = std::string(100000, '"');
  stall.text = std::string(100000, '\\');
  for (int rank = 0; rank < 100000; rank += 2) stall.missing.push_back(rank);
  for (int i = 0; i < 100; ++i) {
    file.Report(file.Open(), stall, /*is_warning=*/true);
    const int64_t ended = file.Open();
    file.Report(ended, stall, /*is_warning=*/true);
    file.Close(ended);
  }
  EXPECT_LT(Text().size(), 80u << 10);
  EXPECT_THAT(Text(), HasSubstr("\"id\": 200,"));
}

TEST_F(StallFileTest, TextIsMadeSafeForJson) {
  StallFile file(path_);
  Stall stall = Example();
  stall.text = "a\"b\\c\nd\xff";
  file.Report(file.Open(), stall, /*is_warning=*/true);
  EXPECT_THAT(Text(), HasSubstr(R"("text": "a\"b\\c?d?")"));
}

TEST_F(StallFileTest, WithoutAPathAndInAChildOfForkNothingIsWritten) {
  StallFile none("");
  EXPECT_EQ(none.Open(), 0);
  none.Report(0, Example(), /*is_warning=*/true);
  none.Close(0);
  StallFile file(path_);
  const int64_t wait = file.Open();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    file.Report(wait, Example(), /*is_warning=*/true);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(Text(), IsEmpty());
}

TEST_F(StallFileTest, AFileThatCannotBeWrittenIsToldOnce) {
  std::vector<std::string> lines;
  SetLogSink([&lines](LogLevel, absl::string_view line) { lines.emplace_back(line); });
  StallFile file("/nowhere/stalls");
  const int64_t wait = file.Open();
  file.Report(wait, Example(), /*is_warning=*/true);
  file.Close(wait);
  SetLogSink(nullptr);
  EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr("'/nowhere/stalls'"), HasSubstr("No such file"))));
}

TEST_F(StallFileTest, TheVariableNamesTheFileOfTheProcess) {
  setenv("SYNCLINE_STALL_FILE", path_.c_str(), 1);
  {
    StallNotice unused;
    StallNotice notice;
    const int64_t id = notice.id();
    EXPECT_EQ(notice.id(), id);
    ReportStall(id, Example(), /*speaks=*/true);
    EXPECT_THAT(Text(), HasSubstr("\"ended\": false"));
  }
  EXPECT_THAT(Text(), AllOf(HasSubstr("\"ended\": true"), Not(HasSubstr("\"ended\": false"))));
}

}  // namespace
}  // namespace syncline::base
