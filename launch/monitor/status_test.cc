// What `syncline-run status` reads and prints.
#include "absl/status/status.h"

#include <cstddef>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/clock.h"
#include "launch/monitor/job_status.h"
#include "launch/monitor/run_status.h"
#include "launch/monitor/status_json.h"
#include "launch/monitor/status_schedule.h"
#include "launch/monitor/status_table.h"
#include "nlohmann/json.hpp"
#include "syncline/hash_store.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr char kPrefix[] = "rdzv/job/";

NodeStatus Node(int group_rank, const std::string& host) {
  NodeStatus node;
  node.host = host;
  node.pid = 80 + group_rank;
  node.updated = absl::Now();
  node.job.run_id = "job";
  node.job.phase = JobStatus::Phase::kRunning;
  node.job.round = 2;
  node.job.restarts = 1;
  node.job.max_restarts = 3;
  node.job.group_rank = group_rank;
  node.job.nodes = 2;
  node.job.max_nodes = 3;
  node.job.world_size = 6;
  node.job.elapsed = absl::Seconds(65);
  node.job.workers.resize(3);
  for (int i = 0; i < 3; ++i) {
    node.job.workers[i].rank = 3 * group_rank + i;
    node.job.workers[i].local_rank = i;
    node.job.workers[i].pid = 1000 + i;
    node.job.workers[i].state = WorkerStatus::State::kRunning;
  }
  return node;
}

TEST(StatusJsonTest, WhatIsWrittenIsReadBack) {
  NodeStatus node = Node(1, "host b\n\"\xe6\x97\xa5");
  node.updated = absl::FromUnixMillis(1234567890123);
  node.job.last_failure = "rank 3: SIGKILL";
  node.job.workers[1].heartbeat_age = absl::Milliseconds(1250);
  node.job.workers[1].stall = StallStatus{"barrier #4", "0, 5-9", absl::Milliseconds(20500)};
  node.job.stall_warnings = 3;
  for (const JobStatus::Phase phase : kJobPhases) {
    for (const WorkerStatus::State state : kWorkerStates) {
      node.job.phase = phase;
      node.job.workers[2].state = state;
      const absl::StatusOr<NodeStatus> back = NodeStatusFromJson(ToJson(node));
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(ToJson(*back), ToJson(node));
      EXPECT_EQ(back->job.phase, phase);
      EXPECT_EQ(back->job.workers[2].state, state);
    }
  }
  const absl::StatusOr<NodeStatus> back = NodeStatusFromJson(ToJson(node));
  EXPECT_EQ(back->host, node.host);
  EXPECT_EQ(back->updated, node.updated);
  EXPECT_EQ(back->job.elapsed, absl::Seconds(65));
  EXPECT_EQ(back->job.last_failure, "rank 3: SIGKILL");
  EXPECT_EQ(back->job.workers[0].heartbeat_age, absl::InfiniteDuration());
  EXPECT_EQ(back->job.workers[1].heartbeat_age, absl::Milliseconds(1250));
  EXPECT_FALSE(back->job.workers[0].stall.has_value());
  ASSERT_TRUE(back->job.workers[1].stall.has_value());
  EXPECT_EQ(back->job.workers[1].stall->operation, "barrier #4");
  EXPECT_EQ(back->job.workers[1].stall->missing, "0, 5-9");
  EXPECT_EQ(back->job.workers[1].stall->waited, absl::Milliseconds(20500));
  EXPECT_EQ(back->job.stall_warnings, 3);
}

TEST(StatusJsonTest, VersionsMayDifferInFields) {
  const absl::StatusOr<NodeStatus> node =
      NodeStatusFromJson(R"({"host": "b", "new": [1], "round": 7, "pid": null})");
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(node->host, "b");
  EXPECT_EQ(node->job.round, 7);
  EXPECT_EQ(node->pid, 0);
}

TEST(StatusJsonTest, WhatIsNoStatusIsAnError) {
  for (const char* text :
       {"", "x", "[]", "3", "{", R"({"host": 3})", R"({"round": "2"})", R"({"round": 1e99})",
        R"({"round": 99999999999})", R"({"phase": "odd"})", R"({"workers": {}})",
        R"({"workers": [3]})", R"({"workers": [{"state": 1}]})", R"({"updated": "now"})",
        R"({"workers": [{"stall": 1}]})", R"({"stall_warnings": 0.5})"}) {
    const absl::Status status = NodeStatusFromJson(text).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kStore) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("a node's status")) << text;
  }
}

TEST(StatusJsonTest, TheDocumentListsAllFields) {
  std::ifstream document("docs/monitoring.md");
  std::set<std::string> documented;
  bool is_section = false;
  for (std::string line; std::getline(document, line);) {
    if (absl::StartsWith(line, "## ")) is_section = line == "## Status";
    if (!is_section || !absl::StartsWith(line, "| `")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, '|');
    const std::vector<std::string> words = absl::StrSplit(cells[1], '`');
    for (size_t i = 1; i < words.size(); i += 2) documented.insert(words[i]);
  }
  std::set<std::string> written;
  const json status = json::parse(ToJson(Node(0, "a")));
  for (const auto& [name, value] : status.items()) written.insert(name);
  EXPECT_EQ(written, documented);
}

TEST(StatusTableTest, ShowsNodesByRankWithTheirRanksAndFailures) {
  FoundNode zero{Node(0, "a"), true, {}};
  FoundNode one{Node(1, "host-b"), true, {}};
  one.status.job.workers[2].state = WorkerStatus::State::kFailed;
  one.status.job.workers[0].heartbeat_age = absl::Milliseconds(430);
  one.status.job.workers[1].heartbeat_age = absl::Milliseconds(12040);
  one.status.job.last_failure = "rank 5: exit code 1\033[2J";
  EXPECT_EQ(FormatStatusTable({one, zero}),
            "job job: round 2, 2 node(s) of 1 to 3, 6 worker(s), restarts 1/3\n"
            "NODE  HOST    PID  STATE    ROUND  RESTARTS  RANKS                  HEARTBEAT"
            "     ELAPSED\n"
            "0     a       80   running  2      1/3       running 0-2            -"
            "             1:05\n"
            "1     host-b  81   running  2      1/3       running 3-4, failed 5  400ms to 12s"
            "  1:05\n"
            "last failure, as host host-b reports: rank 5: exit code 1?[2J\n");
}

TEST(StatusTableTest, ShowsTheLongestStallOfEachNode) {
  FoundNode zero{Node(0, "a"), true, {}};
  FoundNode one{Node(1, "b"), true, {}};
  one.status.job.workers[0].stall = StallStatus{"barrier #4", "0", absl::Seconds(12)};
  one.status.job.workers[2].stall = StallStatus{"recv #1 (\033[2J)", "", absl::Seconds(20.7)};
  const std::string table = FormatStatusTable({one, zero});
  EXPECT_THAT(table,
              HasSubstr("\nstalled, as host b reports: 2 of 3 worker(s); rank 5 waits for 20s "
                        "in recv #1 (?[2J)\n"));
  EXPECT_THAT(table, Not(HasSubstr("host a reports")));
  one.status.job.workers[2].stall.reset();
  EXPECT_THAT(FormatStatusTable({one, zero}),
              HasSubstr("rank 3 waits for 12s in barrier #4, missing: 0\n"));
}

TEST(StatusTableTest, ShowsWhoIsSilentAndWhoHasNoPlaceYet) {
  FoundNode silent{Node(0, "a"), false, absl::Seconds(12.7)};
  FoundNode joining{Node(0, "b"), true, {}};
  joining.status.job.phase = JobStatus::Phase::kJoining;
  joining.status.job.workers.clear();
  joining.status.job.round = 0;
  const std::string table = FormatStatusTable({joining, silent});
  EXPECT_THAT(table, HasSubstr("0     a     80   silent for 12s  2"));
  EXPECT_THAT(table, HasSubstr("-     b     80   joining         0"));
  EXPECT_EQ(FormatStatusTable({}), "no nodes\n");
}

class RunStatusTest : public testing::Test {
 protected:
  void Write(const std::string& key, const NodeStatus& node) {
    ASSERT_TRUE(store_.Set(StatusKey(kPrefix, key), ToJson(node)).ok());
  }

  StatusAnswer Run(StatusFormat format = StatusFormat::kTable) {
    return RunStatus(store_, {kPrefix, format, absl::Seconds(5)});
  }

  HashStore store_{absl::Seconds(1)};
};

TEST_F(RunStatusTest, ShowsTheNodesOfAJobThatRuns) {
  Write("x", Node(0, "a"));
  Write("y", Node(1, "b"));
  ASSERT_TRUE(store_.Set("rdzv/other/status/z", ToJson(Node(2, "c"))).ok());
  const absl::Time start = absl::Now();
  const StatusAnswer answer = Run();
  EXPECT_EQ(answer.exit_code, kStatusRunning);
  EXPECT_THAT(answer.out, HasSubstr("\n1     b     81   running"));
  EXPECT_THAT(answer.out, Not(HasSubstr("\n2 ")));
  EXPECT_THAT(answer.err, IsEmpty());
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));  // At once: nobody seems silent.
}

TEST_F(RunStatusTest, AnswersAsJson) {
  Write("x", Node(0, "a"));
  const StatusAnswer answer = Run(StatusFormat::kJson);
  const json all = json::parse(answer.out);
  EXPECT_EQ(all["running"], true);
  EXPECT_EQ(all["nodes"][0]["host"], "a");
  EXPECT_EQ(all["nodes"][0]["answers"], true);
  EXPECT_EQ(all["nodes"][0]["workers"][2]["state"], "running");
}

TEST_F(RunStatusTest, WithoutNodesNobodyAnswers) {
  StatusAnswer answer = Run();
  EXPECT_EQ(answer.exit_code, kStatusNobody);
  EXPECT_THAT(answer.out, IsEmpty());
  EXPECT_THAT(answer.err, HasSubstr("no node has left its status in hash:// under rdzv/job/"));
  answer = Run(StatusFormat::kJson);
  EXPECT_EQ(json::parse(answer.out), json::parse(R"({"running": false, "nodes": []})"));
}

TEST_F(RunStatusTest, StatusesThatNobodyRenewsAreShownAsSilent) {
  NodeStatus node = Node(0, "a");
  node.updated -= absl::Seconds(70);
  Write("x", node);
  const StatusAnswer answer = Run();
  EXPECT_EQ(answer.exit_code, kStatusNobody);
  EXPECT_THAT(answer.out, HasSubstr("silent for 1m1"));
  EXPECT_THAT(answer.err, HasSubstr("no node has renewed its status"));
}

TEST_F(RunStatusTest, ANodeThatRenewsItsStatusAnswersThoughItsClockIsWrong) {
  NodeStatus node = Node(0, "a");
  node.updated -= absl::Hours(3);
  Write("x", node);
  absl::Notification done;
  std::thread renewing([&] {
    while (!done.WaitForNotificationWithTimeout(absl::Milliseconds(50))) {
      node.updated += absl::Milliseconds(50);
      Write("x", node);
    }
  });
  const StatusAnswer answer = Run();
  done.Notify();
  renewing.join();
  EXPECT_EQ(answer.exit_code, kStatusRunning);
  EXPECT_THAT(answer.out, HasSubstr("running"));
}

TEST_F(RunStatusTest, AStatusThatCannotBeReadIsShownAsSuch) {
  Write("x", Node(0, "a"));
  ASSERT_TRUE(store_.Set(StatusKey(kPrefix, "y"), "garbage").ok());
  const StatusAnswer answer = Run();
  EXPECT_EQ(answer.exit_code, kStatusRunning);
  EXPECT_THAT(answer.out, HasSubstr("a node's status is not JSON"));
}

class FakeClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

TEST(StatusScheduleTest, WritesOnceASecondAndSoonAfterAChange) {
  FakeClock clock;
  StatusSchedule schedule(clock);
  EXPECT_LE(schedule.next(), clock.Now());
  schedule.Written();
  EXPECT_EQ(schedule.next(), clock.Now() + absl::Seconds(1));
  schedule.Changed();
  EXPECT_EQ(schedule.next(), clock.Now() + absl::Milliseconds(200));
  clock.Advance(absl::Milliseconds(500));
  schedule.Changed();
  EXPECT_LE(schedule.next(), clock.Now());
  schedule.Written();
  EXPECT_EQ(schedule.next(), clock.Now() + absl::Seconds(1));
}

}  // namespace
}  // namespace syncline::launch
