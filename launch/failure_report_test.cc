#include "launch/failure_report.h"

#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/failure_record.h"

namespace syncline::launch {
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
       {"rank 2 (pid 4242, host box) failed 12.3 s after its start: SIGKILL", "local rank 2",
        "host box", "after 1 of 1 restarts",
        "killed by signal 9 (SIGKILL): probably the out-of-memory killer", "    ValueError: x\n",
        "stopped because of it: rank 0 (SIGTERM), rank 1 (exit code 1)",
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

TEST(ReportTest, RanksAreThoseOfTheWorld) {
  FailureFacts facts = KilledRank();
  facts.first_rank = 10;
  facts.rank = 12;
  const std::string report = ReportFailure(facts);
  EXPECT_THAT(report, HasSubstr("rank 12 (local rank 2)"));
  EXPECT_THAT(report, HasSubstr("stopped because of it: rank 10 (SIGTERM), rank 11 (exit code 1)"));
}

TEST(ReportTest, TheLaunchersOwnReasonExplainsTheSignal) {
  FailureFacts facts = KilledRank();
  facts.cause.signal = SIGABRT;
  facts.reason = "rank 2 has made no progress for 60 s (limit --health-timeout=60)";
  const std::string report = ReportFailure(facts);
  EXPECT_THAT(report, HasSubstr("killed by signal 6 (SIGABRT): rank 2 has made no progress"));
  EXPECT_THAT(report, Not(HasSubstr("native code")));
}

TEST(ReportTest, AnExceptionThatNobodyRecordedIsFoundInStderr) {
  FailureFacts facts = KilledRank();
  facts.cause = {2, 1, 0};
  facts.last_lines = {"    x = f()", "  File \"a.py\", line 3, in f", "    raise ValueError('x')",
                      "ValueError: x", "atexit says goodbye"};
  EXPECT_EQ(MakeRecord(facts, absl::UnixEpoch()).message, "ValueError: x");
  EXPECT_THAT(ReportFailure(facts), HasSubstr("  its error:\n    ValueError: x\n"));
  facts.message = "recorded";
  EXPECT_EQ(MakeRecord(facts, absl::UnixEpoch()).message, "recorded");
  facts.message.clear();
  facts.cause.code = 3;  // That is no uncaught exception's.
  EXPECT_EQ(MakeRecord(facts, absl::UnixEpoch()).message, "");
}

TEST(TracebackTest, TheLastOneCounts) {
  EXPECT_EQ(
      MessageOfTraceback({"Traceback (most recent call last):", "  File \"a\", line 1, in b",
                          "    c", "    ^^", "KeyError: 'k'", "", "During handling of the above",
                          "", "Traceback (most recent call last):", "  File \"a\", line 1, in b",
                          "pkg.mod.Error"}),
      "pkg.mod.Error");
  EXPECT_EQ(
      MessageOfTraceback({"  File \"a\", line 1", "    x = = 1", "SyntaxError: invalid syntax"}),
      "SyntaxError: invalid syntax");
}

TEST(TracebackTest, OtherTextIsNone) {
  EXPECT_EQ(MessageOfTraceback({}), "");
  EXPECT_EQ(MessageOfTraceback({"ValueError: x"}), "");
  EXPECT_EQ(MessageOfTraceback({"  File \"a\", line 1, in b", "    c"}), "");
  EXPECT_EQ(MessageOfTraceback({"  File \"a\", line 1, in b", "no exception: at all"}), "");
}

class OomKillsTest : public testing::Test {
 protected:
  OomKillsTest() : root_(testing::TempDir() + "/oom-XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
  }
  ~OomKillsTest() override { std::filesystem::remove_all(root_); }

  void Put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

TEST_F(OomKillsTest, AreReadInVersion2) {
  Put("/proc/self/cgroup", "0::/job/step\n");
  Put("/sys/fs/cgroup/job/step/memory.events", "low 0\noom 3\noom_kill 2\n");
  EXPECT_EQ(CountOomKills(root_), 2);
}

TEST_F(OomKillsTest, AreReadInVersion1) {
  Put("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n");
  Put("/sys/fs/cgroup/memory/job/memory.oom_control",
      "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
  EXPECT_EQ(CountOomKills(root_), 4);
}

TEST_F(OomKillsTest, AreReadAtTheRootInAContainer) {
  Put("/proc/self/cgroup", "0::/../outside\n");
  Put("/sys/fs/cgroup/memory.events", "oom_kill 1\n");
  EXPECT_EQ(CountOomKills(root_), 1);
}

TEST_F(OomKillsTest, AreUnknownWithoutAMemoryController) {
  EXPECT_EQ(CountOomKills(root_), std::nullopt);
  Put("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(CountOomKills(root_), std::nullopt);
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

TEST_F(ErrorFileTest, IgnoresTimesThatNoClockHasShown) {
  for (const char* time : {"-1e308", "1e308", "-1", "1e10", "99999999999999999999"}) {
    for (const char* field : {"syncline_time", "timestamp"}) {
      EXPECT_EQ(
          Read(absl::StrCat(R"({"message": {"extraInfo": {")", field, "\": ", time, "}}}")).time,
          std::nullopt)
          << field << " " << time;
    }
  }
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
}  // namespace syncline::launch
