#include "launch/report.h"

#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using testing::HasSubstr;
using testing::Not;

FailureFacts KilledRank() {
  FailureFacts facts;
  facts.cause = {2, 0, SIGKILL};
  facts.rank = 2;
  facts.pid = 4242;
  facts.host = "box";
  facts.after = absl::Milliseconds(12345);
  facts.attempt = 1;
  facts.max_restarts = 1;
  facts.last_lines = {"Traceback:", "ValueError: x"};
  facts.also_failed = {{4, 7, 0}, {3, 1, 0}};  // In the order of their ends.
  facts.stopped = {{1, 1, 0}, {0, 0, SIGTERM}};
  return facts;
}

TEST(ReportTest, NamesRankPidHostSignalTimeRestartsLinesAndConsequences) {
  const std::string report = ReportFailure(KilledRank());
  for (const char* part :
       {"rank 2 (pid 4242) failed 12.3 s after its start: SIGKILL", "local rank 2", "host box",
        "after 1 of 1 restarts", "killed by signal 9 (SIGKILL): probably the out-of-memory killer",
        "    ValueError: x\n", "stopped because of it: rank 0 (SIGTERM), rank 1 (exit code 1)",
        "also failed: rank 3 (exit code 1), rank 4 (exit code 7)", "exit code 137"}) {
    EXPECT_THAT(report, HasSubstr(part));
  }
}

TEST(ReportTest, AnExitCodeIsNoSignal) {
  FailureFacts facts = KilledRank();
  facts.cause = {2, 3, 0};
  facts.last_lines.clear();
  facts.also_failed.clear();
  facts.stopped.clear();
  const std::string report = ReportFailure(facts);
  EXPECT_THAT(report, HasSubstr("failed 12.3 s after its start: exit code 3"));
  EXPECT_THAT(report, HasSubstr("wrote nothing to stderr"));
  EXPECT_THAT(report, Not(HasSubstr("signal")));
  EXPECT_THAT(report, Not(HasSubstr("stopped")));
  EXPECT_THAT(report, Not(HasSubstr("also")));
}

TEST(ReportTest, OutOfMemoryKillsAreEvidence) {
  HostEvidence evidence;
  evidence.oom_kills = 2;
  EXPECT_THAT(ExplainSignal(SIGKILL, evidence), HasSubstr("it killed 2 process(es)"));
  evidence.oom_kills = 0;
  EXPECT_THAT(ExplainSignal(SIGKILL, evidence), HasSubstr("no out-of-memory kill"));
}

TEST(ReportTest, ABusErrorPointsToSharedMemory) {
  HostEvidence evidence;
  evidence.shm_free_bytes = int64_t{3} << 20;
  EXPECT_THAT(ExplainSignal(SIGBUS, evidence), HasSubstr("/dev/shm full (3 MiB are free now)"));
}

TEST(ReportTest, UnknownSignalsAreNumbered) {
  EXPECT_EQ(SignalName(SIGSEGV), "SIGSEGV");
  EXPECT_EQ(SignalName(50), "signal 50");
  EXPECT_EQ(ExplainSignal(50, {}), "");
}

class ErrorFileTest : public testing::Test {
 protected:
  RecordedError Read(const std::string& text) {
    const std::string path = testing::TempDir() + "/error.json";
    std::ofstream(path) << text;
    return ReadErrorFile(path);
  }
};

TEST_F(ErrorFileTest, GivesTheMessageOfEitherForm) {
  EXPECT_EQ(Read(R"({"message": "plain"})").message, "plain");
  EXPECT_EQ(Read(R"({"message": {"message": "nested", "extraInfo": {}}})").message, "nested");
}

TEST_F(ErrorFileTest, GivesTheTimeAsPreciselyAsItIsThere) {
  const absl::Time second = absl::FromUnixSeconds(7);
  for (const char* info : {R"({"timestamp": 6})", R"({"timestamp": "6"})"}) {
    EXPECT_EQ(Read(absl::StrCat(R"({"message": {"extraInfo": )", info, "}}")).time, second);
  }
  const RecordedError precise = Read(
      R"({"message": {"extraInfo": {"timestamp": "6", "syncline_time": 6.5,
                                    "syncline_peer_error": true}}})");
  EXPECT_EQ(precise.time, second - absl::Milliseconds(500));
  EXPECT_TRUE(precise.is_peer_error);
}

TEST_F(ErrorFileTest, IgnoresFieldsOfOtherTypes) {
  const RecordedError recorded = Read(
      R"({"message": {"extraInfo": {"timestamp": [], "syncline_time": "x",
                                    "syncline_peer_error": 1}}})");
  EXPECT_FALSE(recorded.time.has_value());
  EXPECT_FALSE(recorded.is_peer_error);
}

TEST_F(ErrorFileTest, IsEmptyForAnythingElse) {
  for (const char* text :
       {"", "{", "[1]", "3", R"({"message": 3})", R"({"message": {}})", R"({"error": "x"})"}) {
    EXPECT_EQ(Read(text).message, "") << text;
  }
  EXPECT_EQ(ReadErrorFile("/nowhere/error.json").message, "");
}

}  // namespace
}  // namespace syncline
