#include "launch/stall_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "core/base/stall_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/clock.h"

namespace syncline::launch {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class FakeClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

class StallReaderTest : public testing::Test {
 protected:
  StallReaderTest() : path_(absl::StrCat(testing::TempDir(), "/stalls_", getpid())) {
    reader_.Watch(0, path_);
  }
  ~StallReaderTest() override { unlink(path_.c_str()); }

  static base::Stall Example(const std::string& operation = "barrier #4") {
    base::Stall stall;
    stall.operation = operation;
    stall.missing = {0, 5, 6, 7, 8};
    stall.waited = absl::Seconds(10);
    stall.text = "rank 3 has waited";
    return stall;
  }

  // As a worker may, of any contents.
  void Write(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    ASSERT_EQ(rename((path_ + ".new").c_str(), path_.c_str()), 0);
  }

  // The news, in short: "warning barrier #4", "end barrier #4".
  std::vector<std::string> Poll() {
    std::vector<std::string> all;
    for (const StallReader::Event& events : reader_.Poll()) {
      EXPECT_EQ(events.local_rank, 0);
      all.push_back(
          absl::StrCat(events.kind == StallReader::Event::Kind::kWarning ? "warning " : "end ",
                       events.stall.operation));
    }
    return all;
  }

  std::string Longest() const {
    const auto stall = reader_.Longest(0);
    return stall.has_value() ? stall->operation : "";
  }

  const std::string path_;
  FakeClock clock_;
  StallReader reader_{clock_};
  base::StallFile file_{path_};
};

TEST_F(StallReaderTest, AWarningAndTheEndOfItsWaitAreNewsOnce) {
  EXPECT_THAT(Poll(), IsEmpty());
  EXPECT_EQ(Longest(), "");
  const int64_t wait = file_.Open();
  file_.Report(wait, Example(), /*is_warning=*/true);
  const std::vector<StallReader::Event> events = reader_.Poll();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, StallReader::Event::Kind::kWarning);
  EXPECT_EQ(events[0].stall.operation, "barrier #4");
  EXPECT_EQ(events[0].stall.missing, "0, 5-8");
  EXPECT_EQ(events[0].stall.text, "rank 3 has waited");
  EXPECT_GE(events[0].stall.waited, absl::Seconds(10));
  EXPECT_THAT(Poll(), IsEmpty());
  clock_.Advance(absl::Seconds(7));
  ASSERT_TRUE(reader_.Longest(0).has_value());
  EXPECT_GE(reader_.Longest(0)->waited, absl::Seconds(17));
  file_.Report(wait, Example(), /*is_warning=*/true);
  EXPECT_THAT(Poll(), ElementsAre("warning barrier #4"));
  EXPECT_EQ(reader_.warnings(), 2);
  file_.Close(wait);
  EXPECT_THAT(Poll(), ElementsAre("end barrier #4"));
  EXPECT_EQ(Longest(), "");
  EXPECT_THAT(Poll(), IsEmpty());
  EXPECT_EQ(reader_.warnings(), 2);
}

TEST_F(StallReaderTest, AWaitThatBeganAndEndedBetweenTwoLooksIsNotMissed) {
  for (const char* operation : {"barrier #4", "barrier #5"}) {
    const int64_t wait = file_.Open();
    file_.Report(wait, Example(operation), /*is_warning=*/true);
    file_.Close(wait);
  }
  EXPECT_THAT(Poll(), ElementsAre("warning barrier #4", "end barrier #4", "warning barrier #5",
                                  "end barrier #5"));
  EXPECT_EQ(reader_.warnings(), 2);
}

TEST_F(StallReaderTest, AWaitOfWhichAnotherRankWarnsIsStatusButNoNews) {
  const int64_t wait = file_.Open();
  file_.Report(wait, Example(), /*is_warning=*/false);
  EXPECT_THAT(Poll(), IsEmpty());
  EXPECT_EQ(Longest(), "barrier #4");
  file_.Close(wait);
  EXPECT_THAT(Poll(), IsEmpty());
  EXPECT_EQ(Longest(), "");
  EXPECT_EQ(reader_.warnings(), 0);
}

TEST_F(StallReaderTest, OfSeveralWaitsTheLongestIsShown) {
  const int64_t first = file_.Open();
  file_.Report(file_.Open(), Example("recv #1"), /*is_warning=*/true);
  base::Stall longer = Example();
  longer.waited = absl::Seconds(40);
  file_.Report(first, longer, /*is_warning=*/true);
  Poll();
  EXPECT_EQ(Longest(), "barrier #4");
  file_.Close(first);
  Poll();
  EXPECT_EQ(Longest(), "recv #1");
}

TEST_F(StallReaderTest, TheEndOfTheWorkerEndsItsWaits) {
  file_.Report(file_.Open(), Example(), /*is_warning=*/true);
  reader_.Forget(0);  // Before it was looked at.
  EXPECT_THAT(Poll(), ElementsAre("warning barrier #4", "end barrier #4"));
  EXPECT_EQ(Longest(), "");
  EXPECT_EQ(reader_.warnings(), 1);
  reader_.Watch(0, path_);  // The next one has not written it.
  EXPECT_THAT(Poll(), IsEmpty());
  EXPECT_EQ(Longest(), "");
}

TEST_F(StallReaderTest, TheEndOfTheProcessThatWaitedEndsTheWait) {
  const pid_t child = fork();  // Of a worker that is a script.
  ASSERT_GE(child, 0);
  if (child == 0) {
    base::StallFile file(path_);
    file.Report(file.Open(), Example(), /*is_warning=*/true);
    _exit(0);
  }
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_THAT(Poll(), ElementsAre("warning barrier #4"));  // Its parent has yet to reap it.
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_THAT(Poll(), ElementsAre("end barrier #4"));
  EXPECT_EQ(Longest(), "");
  file_.Report(file_.Open(), Example("barrier #5"), /*is_warning=*/true);
  EXPECT_THAT(Poll(), ElementsAre("warning barrier #5"));
  EXPECT_EQ(reader_.warnings(), 2);
}

TEST_F(StallReaderTest, ProcessesThatWriteInTurnsAreCountedOnce) {
  const std::string text = R"({"pid": PID, "waits": [
      {"id": 1, "operation": "barrier PID", "warnings": 1, "waited": 10, "ended": false}]})";
  for (int turn = 0; turn < 3; ++turn) {
    for (const char* pid : {"71", "72"}) {
      Write(absl::StrReplaceAll(text, {{"PID", pid}}));
      Poll();
      EXPECT_EQ(Longest(), absl::StrCat("barrier ", pid));
    }
  }
  EXPECT_EQ(reader_.warnings(), 2);
}

TEST_F(StallReaderTest, WhatIsNoStallFileSaysNothing) {
  for (const std::string& text :
       {std::string(), std::string("x"), std::string("[]"), std::string("3"), std::string("{"),
        std::string(100000, '['), std::string(1 << 20, ' '), std::string("{\"pid\": \"1\"}"),
        std::string(R"({"pid": 99999999999999999999, "waits": 3})"),
        std::string(R"({"pid": 1, "waits": [3, null, [], {"id": "x"}, {"warnings": "2"}]})"),
        std::string(R"({"pid": 1, "waits": [{"id": -1, "waited": "long"}]})"),
        std::string("{\"pid\": 1, \"waits\": [{\"operation\": \"\xff\"}]}")}) {
    file_.Report(file_.Open(), Example(), /*is_warning=*/true);
    Poll();
    EXPECT_EQ(Longest(), "barrier #4");
    Write(text);
    Poll();
    EXPECT_FALSE(reader_.Longest(0).has_value()) << text.substr(0, 100);
  }
  EXPECT_EQ(reader_.warnings(), 12);
}

TEST_F(StallReaderTest, NumbersThatCannotBeAreBounded) {
  Write(R"({"pid": 1, "time": 1e308, "waits": [
      {"id": 1, "operation": "x", "waited": 1e308, "warnings": 4000000000000000000}]})");
  EXPECT_THAT(Poll(), ElementsAre("warning x"));
  EXPECT_EQ(reader_.warnings(), 1);
  EXPECT_LE(reader_.Longest(0)->waited, absl::Seconds(1e9));
}

TEST_F(StallReaderTest, OfManyWaitsAndLongTextsSomeAreRead) {
  std::string waits;
  for (int i = 1; i <= 100; ++i) {
    absl::StrAppend(&waits, i == 1 ? "" : ",", "{\"id\": ", i,
                    ", \"warnings\": 1, \"operation\": \"", std::string(1100, 'x'), "\"}");
  }
  Write(absl::StrCat("{\"pid\": 1, \"waits\": [", waits, "]}"));
  const std::vector<StallReader::Event> events = reader_.Poll();
  ASSERT_EQ(events.size(), StallReader::kMaxWaits);
  EXPECT_EQ(events[0].stall.operation.size(), 1024u);
}

TEST_F(StallReaderTest, WhatIsNoFileHoldsUpNobody) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(Poll(), IsEmpty());
  ASSERT_EQ(unlink(path_.c_str()), 0);
  ASSERT_EQ(symlink("/dev/zero", path_.c_str()), 0);
  EXPECT_THAT(Poll(), IsEmpty());
  ASSERT_EQ(unlink(path_.c_str()), 0);
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  EXPECT_THAT(Poll(), IsEmpty());
  ASSERT_EQ(rmdir(path_.c_str()), 0);
  EXPECT_THAT(Poll(), IsEmpty());
}

}  // namespace
}  // namespace syncline::launch
