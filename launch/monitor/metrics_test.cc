// The metrics, by the grammar of Prometheus' text format, and the server, over real sockets.
#include "launch/monitor/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/clock.h"
#include "launch/monitor/metrics_server.h"
#include "launch/monitor/status_json.h"

namespace syncline::launch {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

NodeStatus Example() {
  NodeStatus status;
  status.host = "host \"b\"\\\n";
  status.job.run_id = "job";
  status.job.phase = JobStatus::Phase::kRunning;
  status.job.round = 3;
  status.job.restarts = 2;
  status.job.nodes = 2;
  status.job.world_size = 4;
  status.job.elapsed = absl::Seconds(12345678);
  status.job.workers.resize(2);
  status.job.workers[0].rank = 2;
  status.job.workers[0].state = WorkerStatus::State::kRunning;
  status.job.workers[0].heartbeat_age = absl::Milliseconds(1500);
  status.job.workers[0].stall = StallStatus{"barrier #4", "0", absl::Seconds(20)};
  status.job.stall_warnings = 2;
  status.job.workers[1].rank = 3;
  status.job.workers[1].local_rank = 1;
  status.job.workers[1].state = WorkerStatus::State::kFailed;
  return status;
}

// A parser of the format, strict where promtool is: every family is described once, before its
// samples, which stand together; no sample comes twice.
class Metrics {
 public:
  explicit Metrics(absl::string_view text) {
    EXPECT_TRUE(absl::EndsWith(text, "\n"));
    std::vector<std::string> lines = absl::StrSplit(text, '\n');
    lines.pop_back();
    for (const std::string& line : lines) {
      if (line.rfind("# HELP ", 0) == 0) {
        Help(line.substr(7));
      } else if (line.rfind("# TYPE ", 0) == 0) {
        Type(line.substr(7));
      } else {
        Sample(line);
      }
    }
  }

  // By series as written: "name" or "name{label="value",...}".
  std::map<std::string, double> samples;
  std::map<std::string, std::string> types;

 private:
  void Help(absl::string_view rest) {
    const std::vector<std::string> parts = absl::StrSplit(rest, absl::MaxSplits(' ', 1));
    ASSERT_EQ(parts.size(), 2u) << rest;
    EXPECT_TRUE(IsName(parts[0])) << rest;
    EXPECT_THAT(parts[1], EndsWith("."));
    EXPECT_TRUE(helped_.insert(parts[0]).second) << parts[0] << " is described twice";
    family_ = parts[0];
  }

  void Type(absl::string_view rest) {
    const std::vector<std::string> parts = absl::StrSplit(rest, ' ');
    ASSERT_EQ(parts.size(), 2u) << rest;
    EXPECT_EQ(parts[0], family_);
    EXPECT_TRUE(parts[1] == "gauge" || parts[1] == "counter") << rest;
    EXPECT_EQ(parts[1] == "counter", absl::EndsWith(parts[0], "_total")) << rest;
    EXPECT_TRUE(types.emplace(parts[0], parts[1]).second) << rest;
  }

  void Sample(absl::string_view line) {
    const size_t end = line.rfind(' ');
    ASSERT_NE(end, absl::string_view::npos) << line;
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(end + 1), &value)) << line;
    const absl::string_view series = line.substr(0, end);
    EXPECT_EQ(series.substr(0, series.find('{')), family_) << line;
    EXPECT_EQ(types.count(family_), 1u) << line;
    if (series.size() > family_.size()) CheckLabels(series.substr(family_.size()));
    EXPECT_TRUE(samples.emplace(std::string(series), value).second) << line << " comes twice";
  }

  void CheckLabels(absl::string_view text) {
    ASSERT_TRUE(absl::ConsumePrefix(&text, "{") && absl::ConsumeSuffix(&text, "}")) << text;
    std::set<std::string> names;
    while (!text.empty()) {
      const size_t equals = text.find("=\"");
      ASSERT_NE(equals, absl::string_view::npos) << text;
      EXPECT_TRUE(IsName(text.substr(0, equals))) << text;
      EXPECT_TRUE(names.emplace(text.substr(0, equals)).second) << text;
      size_t i = equals + 2;
      for (; i < text.size() && text[i] != '"'; ++i) {
        if (text[i] != '\\') continue;
        ASSERT_LT(++i, text.size());
        EXPECT_TRUE(text[i] == '\\' || text[i] == '"' || text[i] == 'n') << text;
      }
      ASSERT_LT(i, text.size()) << "a value without an end: " << text;
      text.remove_prefix(i + 1);
      if (!text.empty()) {
        ASSERT_TRUE(absl::ConsumePrefix(&text, ",")) << text;
      }
    }
  }

  static bool IsName(absl::string_view name) {
    return !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == name.npos;
  }

  std::string family_;
  std::set<std::string> helped_;
};

TEST(MetricsTest, AreWhatPrometheusReads) {
  const Metrics metrics(FormatMetrics(Example()));
  const auto value = [&metrics](absl::string_view series) {
    return metrics.samples.at(absl::StrCat("syncline_launcher_", series));
  };
  EXPECT_EQ(value("up"), 1);
  EXPECT_EQ(value(R"(info{run_id="job",host="host \"b\"\\\n"})"), 1);
  EXPECT_EQ(value("round"), 3);
  EXPECT_EQ(value("restarts_total"), 2);
  EXPECT_EQ(metrics.types.at("syncline_launcher_restarts_total"), "counter");
  EXPECT_EQ(value("nodes"), 2);
  EXPECT_EQ(value("world_size"), 4);
  EXPECT_EQ(value("workers_up"), 1);
  EXPECT_EQ(value("elapsed_seconds"), 12345678);
  EXPECT_EQ(value(R"(phase{phase="running"})"), 1);
  EXPECT_EQ(value(R"(phase{phase="failed"})"), 0);
  EXPECT_EQ(value(R"(worker_state{rank="3",local_rank="1",state="failed"})"), 1);
  EXPECT_EQ(value(R"(worker_state{rank="3",local_rank="1",state="running"})"), 0);
  EXPECT_EQ(value("workers_stalled"), 1);
  EXPECT_EQ(value("stall_warnings_total"), 2);
  EXPECT_EQ(metrics.types.at("syncline_launcher_stall_warnings_total"), "counter");
  EXPECT_EQ(value(R"(worker_stall_seconds{rank="2",local_rank="0"})"), 20);
  EXPECT_EQ(
      metrics.samples.count(R"(syncline_launcher_worker_stall_seconds{rank="3",local_rank="1"})"),
      0u);
  EXPECT_EQ(value(R"(worker_heartbeat_age_seconds{rank="2",local_rank="0"})"), 1.5);
  EXPECT_EQ(metrics.samples.count(
                R"(syncline_launcher_worker_heartbeat_age_seconds{rank="3",local_rank="1"})"),
            0u);
}

TEST(MetricsTest, TheDocumentListsAllOfThem) {
  std::ifstream document("docs/monitoring.md");
  std::set<std::string> documented;
  for (std::string line; std::getline(document, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, '`');
    if (parts.size() > 1 && parts[0] == "| " && absl::StartsWith(parts[1], "syncline_launcher_")) {
      documented.insert(parts[1].substr(0, parts[1].find('{')));
    }
  }
  std::set<std::string> exported;
  for (const auto& [name, type] : Metrics(FormatMetrics(Example())).types) exported.insert(name);
  EXPECT_EQ(exported, documented);
}

class FakeClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

class MetricsServerTest : public testing::Test {
 protected:
  static constexpr int kPollMilliseconds = 10000;  // Far more than anything here needs.

  void SetUp() override {
    Start([] { return Example(); });
  }

  void Start(MetricsServer::Snapshot snapshot) {
    absl::StatusOr<std::unique_ptr<MetricsServer>> server =
        MetricsServer::Start(0, std::move(snapshot), clock_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  base::UniqueFd Connect() {
    base::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }

  static void Send(const base::UniqueFd& fd, absl::string_view text) {
    EXPECT_EQ(send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }

  // One turn of the launcher's loop, with `client` in it too.
  void Turn(const base::UniqueFd& client) {
    std::vector<pollfd> fds;
    server_->AddTo(&fds);
    fds.push_back({client.get(), POLLIN, 0});
    ASSERT_GT(poll(fds.data(), fds.size(), kPollMilliseconds), 0);
    server_->Handle(fds);
  }

  // All that comes until the server closes its side; empty too if it resets the connection.
  std::string Receive(const base::UniqueFd& fd) {
    std::string all;
    for (int turns = 0; turns < 100000; ++turns) {
      char buffer[4096];
      const ssize_t size = recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (size == 0) return all;
      if (size > 0) {
        all.append(buffer, static_cast<size_t>(size));
      } else if (errno != EAGAIN) {
        return all;
      } else {
        Turn(fd);
      }
    }
    ADD_FAILURE() << "no end";
    return all;
  }

  std::string Request(absl::string_view text) {
    const base::UniqueFd fd = Connect();
    Send(fd, text);
    return Receive(fd);
  }

  FakeClock clock_;
  std::unique_ptr<MetricsServer> server_;
};

std::string BodyOf(const std::string& response) {
  return response.substr(response.find("\r\n\r\n") + 4);
}

TEST_F(MetricsServerTest, ServesMetricsStatusAndHealth) {
  const std::string metrics = Request("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"));
  EXPECT_EQ(BodyOf(metrics), FormatMetrics(Example()));
  EXPECT_THAT(metrics, HasSubstr(absl::StrCat("Content-Length: ", BodyOf(metrics).size(), "\r\n")));
  const absl::StatusOr<NodeStatus> status =
      NodeStatusFromJson(BodyOf(Request("GET /status?x=1 HTTP/1.0\r\n\r\n")));
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->job.round, 3);
  EXPECT_EQ(BodyOf(Request("GET /healthz HTTP/1.1\r\n\r\n")), "ok\n");
  EXPECT_EQ(server_->url(), absl::StrCat("http://127.0.0.1:", server_->port(), "/metrics"));
}

TEST_F(MetricsServerTest, RefusesWhatItDoesNotServe) {
  EXPECT_THAT(Request("GET /other HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Request("POST /metrics HTTP/1.1\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("\r\nAllow: GET, HEAD\r\n")));
  EXPECT_THAT(Request("nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Request("\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Request(std::string("\0\xff\r\n\r\n", 6)), StartsWith("HTTP/1.1 400 "));
  const std::string head = Request("HEAD /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(BodyOf(head), IsEmpty());
}

TEST_F(MetricsServerTest, RefusesNamesThatStrangersMayOwn) {
  for (const char* host : {"evil.example", "EVIL.example:80", "127.0.0.1.evil.example", "a."}) {
    for (const char* path : {"/status", "/metrics", "/healthz"}) {
      EXPECT_THAT(
          Request(absl::StrCat("GET ", path, " HTTP/1.1\r\nX: y\r\nhOST: ", host, "\r\n\r\n")),
          StartsWith("HTTP/1.1 421 "))
          << host;
    }
  }
  for (const char* host : {"localhost", "localhost:80", "127.0.0.1:80", "[::1]:80", "10.1.2.3"}) {
    EXPECT_THAT(Request(absl::StrCat("GET /status HTTP/1.1\r\nHost: ", host, "\r\n\r\n")),
                StartsWith("HTTP/1.1 200 "))
        << host;
  }
  EXPECT_THAT(Request("GET /status HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(MetricsServerTest, ARequestMayComeInPieces) {
  const base::UniqueFd fd = Connect();
  for (const char piece : absl::string_view("GET /healthz HTTP/1.1\r\nA: b\r\n\r\n")) {
    Send(fd, absl::string_view(&piece, 1));
    Turn(fd);
  }
  EXPECT_EQ(BodyOf(Receive(fd)), "ok\n");
}

TEST_F(MetricsServerTest, ARequestWithoutEndIsRefused) {
  const std::string request = "GET /metrics HTTP/1.1\r\nA: " + std::string(100 << 10, 'a');
  EXPECT_THAT(Request(request), StartsWith("HTTP/1.1 431 "));
}

TEST_F(MetricsServerTest, AResponseLargerThanTheSocketsBuffersArrivesWhole) {
  NodeStatus large = Example();
  large.job.workers.resize(40000);
  for (int i = 0; i < 40000; ++i) large.job.workers[i].rank = large.job.workers[i].local_rank = i;
  Start([&large] { return large; });
  EXPECT_EQ(BodyOf(Request("GET /metrics HTTP/1.1\r\n\r\n")), FormatMetrics(large));
}

TEST_F(MetricsServerTest, WhoeverIsTooSlowIsDropped) {
  EXPECT_EQ(server_->deadline(), absl::InfiniteFuture());
  const base::UniqueFd slow = Connect();
  Send(slow, "GET /metr");
  std::vector<pollfd> fds;
  server_->AddTo(&fds);
  ASSERT_GT(poll(fds.data(), fds.size(), kPollMilliseconds), 0);
  server_->Handle(fds);
  EXPECT_EQ(server_->deadline(), clock_.Now() + MetricsServer::kTimeout);
  clock_.Advance(MetricsServer::kTimeout);
  server_->Handle({});
  EXPECT_EQ(server_->deadline(), absl::InfiniteFuture());
  EXPECT_THAT(Receive(slow), IsEmpty());
}

TEST_F(MetricsServerTest, ManyIdleClientsKeepOthersOutUntilTheirTimeoutOnly) {
  std::vector<base::UniqueFd> idle;
  for (int i = 0; i < MetricsServer::kMaxClients; ++i) idle.push_back(Connect());
  const base::UniqueFd last = Connect();
  Send(last, "GET /healthz HTTP/1.1\r\n\r\n");
  std::vector<pollfd> fds;
  for (int turns = 0; turns < 1000; ++turns) {
    fds.clear();
    server_->AddTo(&fds);
    if (fds.size() == MetricsServer::kMaxClients) break;  // Without the listener.
    ASSERT_GT(poll(fds.data(), fds.size(), kPollMilliseconds), 0);
    server_->Handle(fds);
  }
  EXPECT_THAT(fds, SizeIs(MetricsServer::kMaxClients));
  clock_.Advance(MetricsServer::kTimeout);
  server_->Handle({});
  EXPECT_EQ(BodyOf(Receive(last)), "ok\n");
}

TEST_F(MetricsServerTest, ClientsThatLeaveAreForgotten) {
  for (const char* request : {"", "GET /he", "GET /healthz HTTP/1.1\r\n\r\n"}) {
    const base::UniqueFd fd = Connect();
    Send(fd, request);
  }
  const std::string health = Request("GET /healthz HTTP/1.1\r\n\r\n");
  EXPECT_EQ(BodyOf(health), "ok\n");
  for (int turns = 0; turns < 1000 && server_->deadline() != absl::InfiniteFuture(); ++turns) {
    std::vector<pollfd> fds;
    server_->AddTo(&fds);
    ASSERT_GT(poll(fds.data(), fds.size(), kPollMilliseconds), 0);
    server_->Handle(fds);
  }
  EXPECT_EQ(server_->deadline(), absl::InfiniteFuture());
}

TEST_F(MetricsServerTest, APortThatIsTakenIsAnErrorThatNamesIt) {
  const auto second = MetricsServer::Start(server_->port(), [] { return NodeStatus(); }, clock_);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("--metrics-port: port ", server_->port(),
                                     " of 127.0.0.1 cannot be taken: Address already in use")));
}

TEST_F(MetricsServerTest, ListensOnLoopbackOnly) {
  base::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server_->port()));
  inet_pton(AF_INET, "127.0.0.2", &address.sin_addr);  // Reached only by who listens everywhere.
  EXPECT_NE(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}

}  // namespace
}  // namespace syncline::launch
