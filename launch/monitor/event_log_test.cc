// EventLog against its description in docs/monitoring.md, and against disks that fail.
#include "launch/monitor/event_log.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/monitor/event_file.h"
#include "nlohmann/json.hpp"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class EventLogTest : public testing::Test {
 protected:
  EventLogTest() : path_(absl::StrCat(testing::TempDir(), "/event_log_test_", getpid())) {}
  ~EventLogTest() override { unlink(path_.c_str()); }

  absl::StatusOr<EventLog> Open(const std::string& path) {
    EventLog::Job job = {"job", "node-a", "host-a"};
    if (path.empty()) return EventLog(std::move(job), nullptr);
    SYNCLINE_ASSIGN_OR_RETURN(
        const std::shared_ptr<EventFile> file,
        EventFile::Open(path, [this](absl::string_view text) { printed_.emplace_back(text); }));
    return EventLog(std::move(job), [file](absl::string_view line) { file->Write(line); });
  }

  std::vector<std::string> Lines() const {
    std::ifstream file(path_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  const std::string path_;
  std::vector<std::string> printed_;
};

// Every event there is.
void LogAll(EventLog* log) {
  const EventLog::Worker worker = {5, 1, 4711};
  log->LauncherStarted(81, "1.2.3");
  log->Joining("c10d", "host-b:29400");
  log->RoundFormed({2, 1, 4, 8, {"host-b", "host-a"}});
  log->WorkersStarted({{4, 0, 4710}, worker});
  log->NodeJoined("node-c", "host-c");
  log->NodeLeft("node-c", "host-c");
  log->NodeLost("node-b", "host-b", absl::Milliseconds(5250));
  log->StoreRehosted("host-a:29400");
  log->HeartbeatLost(worker, absl::Seconds(30));
  log->Stall(worker, "barrier #4", absl::Seconds(10), "0, 5-9", "rank 5 has waited");
  log->StallEnded(worker, "barrier #4", absl::Milliseconds(12500));
  log->WorkerFailed(worker, 0, SIGKILL, "killed");
  log->WorkerExited(worker, 0, 0);
  log->Restart(1, 3, "rank 5 failed");
  log->StopSignal("SIGTERM");
  log->LauncherEnded(143);
}

using Fields = std::set<std::string>;

// Of the table in docs/monitoring.md below `heading`: what stands in backquotes in the first two
// cells.
std::map<std::string, Fields> Documented(absl::string_view heading) {
  std::ifstream file("docs/monitoring.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string document = text.str();
  std::map<std::string, Fields> documented;
  const std::vector<std::string> sections = absl::StrSplit(document, "\n## ");
  for (const std::string& section : sections) {
    if (section.rfind(std::string(heading), 0) != 0) continue;
    for (const std::string& row : std::vector<std::string>(absl::StrSplit(section, '\n'))) {
      const std::vector<std::string> cells = absl::StrSplit(row, '|');
      if (cells.size() < 4) continue;
      const auto quoted = [](const std::string& cell) {
        std::vector<std::string> words;
        const std::vector<std::string> parts = absl::StrSplit(cell, '`');
        for (size_t i = 1; i < parts.size(); i += 2) words.push_back(parts[i]);
        return words;
      };
      const std::vector<std::string> fields = quoted(cells[2]);
      for (const std::string& event : quoted(cells[1])) {
        documented[event] = Fields(fields.begin(), fields.end());
      }
    }
  }
  return documented;
}

TEST_F(EventLogTest, TheDocumentDescribesEveryEventWithItsFields) {
  absl::StatusOr<EventLog> log = Open(path_);
  ASSERT_TRUE(log.ok()) << log.status();
  LogAll(&*log);
  const std::map<std::string, Fields> documented = Documented("Events");
  ASSERT_EQ(documented.count("every event"), 1u);
  std::map<std::string, Fields> logged;
  for (const std::string& line : Lines()) {
    const json event = json::parse(line, nullptr, false);
    ASSERT_TRUE(event.is_object()) << line;
    Fields fields;
    for (const auto& [name, value] : event.items()) fields.insert(name);
    for (const std::string& common : documented.at("every event")) {
      EXPECT_EQ(fields.erase(common), 1u) << common << " in " << line;
    }
    logged[event["event"].get<std::string>()] = fields;
  }
  logged["every event"] = documented.at("every event");
  EXPECT_EQ(logged, documented);
  EXPECT_THAT(printed_, IsEmpty());
}

TEST_F(EventLogTest, ALineTellsWhenWhereAndInWhichRoundSomethingHappened) {
  absl::StatusOr<EventLog> log = Open(path_);
  ASSERT_TRUE(log.ok()) << log.status();
  const double before = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  LogAll(&*log);
  const std::vector<std::string> lines = Lines();
  ASSERT_THAT(lines, SizeIs(16));
  const json first = json::parse(lines[0]);
  EXPECT_EQ(first["round"], nullptr);
  EXPECT_NEAR(first["time"].get<double>(), before, 60);
  json failed = json::parse(lines[11]);
  failed.erase("time");
  EXPECT_EQ(failed, json::parse(R"({"event": "worker_failed", "run_id": "job", "node": "node-a",
      "host": "host-a", "round": 2, "rank": 5, "local_rank": 1, "pid": 4711, "exit_code": null,
      "signal": "SIGKILL", "reason": "killed"})"));
  EXPECT_EQ(json::parse(lines[6])["silent_for"], 5.25);
  EXPECT_EQ(json::parse(lines[9])["missing"], "0, 5-9");
  EXPECT_EQ(json::parse(lines[10])["waited"], 12.5);
  EXPECT_EQ(json::parse(lines[3])["workers"][1],
            json::parse(R"({"rank": 5, "local_rank": 1, "pid": 4711})"));
}

TEST_F(EventLogTest, LaunchersAppendToTheSameFile) {
  for (int i = 0; i < 2; ++i) {
    absl::StatusOr<EventLog> log = Open(path_);
    ASSERT_TRUE(log.ok()) << log.status();
    absl::StatusOr<EventLog> other = Open(path_);
    ASSERT_TRUE(other.ok()) << other.status();
    log->LauncherStarted(1, "v");
    other->LauncherStarted(2, "v");
    log->LauncherEnded(0);
  }
  EXPECT_THAT(Lines(), SizeIs(6));
}

TEST_F(EventLogTest, TextThatIsNotUtf8IsReplacedAndNewlinesStayInTheirLine) {
  absl::StatusOr<EventLog> log = Open(path_);
  ASSERT_TRUE(log.ok()) << log.status();
  log->WorkerFailed({}, 1, 0, "a\nb\xff\"");
  ASSERT_THAT(Lines(), SizeIs(1));
  EXPECT_EQ(json::parse(Lines()[0])["reason"], "a\nb\xef\xbf\xbd\"");
}

TEST_F(EventLogTest, AFileThatCannotBeOpenedIsAnErrorThatNamesIt) {
  const absl::Status status = Open("/nowhere/events").status();
  EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("/nowhere/events cannot be opened: No such file"));
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(std::string(Open(path_).status().message()), HasSubstr("nobody reads this pipe"));
}

TEST_F(EventLogTest, WithoutAPathNothingIsWritten) {
  absl::StatusOr<EventLog> log = Open("");
  ASSERT_TRUE(log.ok()) << log.status();
  LogAll(&*log);
  EXPECT_THAT(printed_, IsEmpty());
}

TEST_F(EventLogTest, AFullDiskIsSaidOnce) {
  absl::StatusOr<EventLog> log = Open("/dev/full");
  ASSERT_TRUE(log.ok()) << log.status();
  LogAll(&*log);
  EXPECT_THAT(printed_, ElementsAre("events are lost, the job goes on: /dev/full (--event-log): "
                                    "No space left on device"));
}

TEST_F(EventLogTest, AfterALineThatWasCutTheNextBeginsOnItsOwn) {
  absl::StatusOr<EventLog> log = Open(path_);
  ASSERT_TRUE(log.ok()) << log.status();
  log->LauncherEnded(1);
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  rlimit unlimited;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  rlimit full = unlimited;
  full.rlim_cur = static_cast<rlim_t>(info.st_size) + 10;
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  log->LauncherEnded(2);  // Is cut.
  log->LauncherEnded(3);  // Does not fit at all.
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
  log->LauncherEnded(4);
  signal(SIGXFSZ, handler);
  const std::vector<std::string> lines = Lines();
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(json::parse(lines[0])["exit_code"], 1);
  EXPECT_THAT(lines[1], SizeIs(10));
  EXPECT_EQ(json::parse(lines[2])["exit_code"], 4);
  EXPECT_THAT(printed_, SizeIs(1));
}

TEST_F(EventLogTest, AReaderOfAPipeThatStallsCostsLinesNotTime) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const base::UniqueFd reader(open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  absl::StatusOr<EventLog> log = Open(path_);
  ASSERT_TRUE(log.ok()) << log.status();
  for (int i = 0; i < 5000 && printed_.empty(); ++i) log->StopSignal("SIGTERM");
  EXPECT_THAT(printed_, ElementsAre(HasSubstr("Resource temporarily unavailable")));
}

}  // namespace
}  // namespace syncline::launch
