// The status that a node has left in the store, and what anyone asks of the launcher's port for
// metrics.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/testing/fuzz/fuzz.h"
#include "launch/monitor/job_status.h"
#include "launch/monitor/metrics.h"
#include "launch/monitor/metrics_server.h"
#include "launch/monitor/status_json.h"

namespace syncline::fuzz {
namespace {

launch::NodeStatus Example() {
  launch::NodeStatus status;
  status.host = "host a";
  status.pid = 81;
  status.job.run_id = "job 7";
  status.job.last_failure = "rank 1 was killed by SIGKILL";
  launch::WorkerStatus worker;
  worker.stall = launch::StallStatus();
  worker.stall->operation = "all_reduce #5";
  status.job.workers = {worker, launch::WorkerStatus()};
  return status;
}

void ReadStatus(absl::string_view text) {
  const auto status = launch::NodeStatusFromJson(text);
  if (!status.ok()) return;
  // What is not UTF-8 is refused by the JSON parser, so all of it is kept.
  const std::string written = launch::ToJson(*status);
  const auto again = launch::NodeStatusFromJson(written);
  Require(again.ok(), "what is written can be read");
  launch::FormatMetrics(*status);
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  if (reader.Below(2) == 0) return ReadStatus(reader.rest());
  const std::string response =
      launch::MetricsServer::Respond(reader.rest(), [] { return Example(); });
  Require(absl::StartsWith(response, "HTTP/1.1 "), "the answer is HTTP");
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = {absl::StrCat(std::string(1, '\0'), launch::ToJson(Example()))};
  for (const absl::string_view request :
       {"GET /metrics HTTP/1.1\r\nHost: localhost:9090\r\n\r\n",
        "HEAD /status?x=1 HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: evil.example.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "POST /metrics HTTP/1.1\r\n\r\n", "\r\n\r\n"}) {
    seeds.push_back(absl::StrCat("\1", request));
  }
  return seeds;
}

}  // namespace syncline::fuzz
