#include "launch/monitor/event_log.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"

namespace syncline::launch {
namespace {

using Json = nlohmann::ordered_json;

// With milliseconds.
double Seconds(absl::Duration duration) {
  return static_cast<double>(absl::ToInt64Milliseconds(duration)) / 1000;
}

}  // namespace

// An event's fields, in the order in which they are added.
class EventLog::Line {
 public:
  Line& Add(const char* name, absl::string_view value) {
    json_[name] = std::string(value);
    return *this;
  }
  Line& Add(const char* name, int value) {
    json_[name] = value;
    return *this;
  }
  Line& Add(const char* name, absl::Duration value) {
    json_[name] = Seconds(value);
    return *this;
  }
  Line& AddNull(const char* name) {
    json_[name] = nullptr;
    return *this;
  }
  Line& Add(const char* name, const std::vector<std::string>& values) {
    json_[name] = values;
    return *this;
  }
  Line& Add(const Worker& worker) {
    return Add("rank", worker.rank).Add("local_rank", worker.local_rank).Add("pid", worker.pid);
  }
  // How a process ended.
  Line& AddEnd(int exit_code, int signal) {
    if (signal == 0) return Add("exit_code", exit_code).AddNull("signal");
    const char* const name = sigabbrev_np(signal);
    const std::string text = name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat(signal);
    return AddNull("exit_code").Add("signal", text);
  }
  Line& Add(const char* name, const std::vector<Worker>& workers) {
    Json all = Json::array();
    for (const Worker& worker : workers) {
      Line one;
      all.push_back(std::move(one.Add(worker).json_));
    }
    json_[name] = std::move(all);
    return *this;
  }

  std::string Text() const {
    return json_.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
  }

 private:
  Json json_ = Json::object();
};

EventLog::Line EventLog::Begin(absl::string_view event) const {
  Line line;
  line.Add("time", absl::Now() - absl::UnixEpoch())
      .Add("event", event)
      .Add("run_id", job_.run_id)
      .Add("node", job_.node)
      .Add("host", job_.host);
  return round_ < 0 ? line.AddNull("round") : line.Add("round", round_);
}

void EventLog::Write(const Line& line) {
  if (emit_) emit_(line.Text());
}

void EventLog::LauncherStarted(int pid, absl::string_view version) {
  Write(Begin("launcher_started").Add("pid", pid).Add("version", version));
}

void EventLog::LauncherEnded(int exit_code) {
  Write(Begin("launcher_ended").Add("exit_code", exit_code));
}

void EventLog::Joining(absl::string_view backend, absl::string_view endpoint) {
  Write(Begin("joining").Add("backend", backend).Add("endpoint", endpoint));
}

void EventLog::RoundFormed(const Round& round) {
  round_ = round.round;
  Write(Begin("round_formed")
            .Add("group_rank", round.group_rank)
            .Add("first_rank", round.first_rank)
            .Add("world_size", round.world_size)
            .Add("hosts", round.hosts));
}

void EventLog::WorkersStarted(const std::vector<Worker>& workers) {
  Write(Begin("workers_started").Add("workers", workers));
}

void EventLog::WorkerExited(const Worker& worker, int exit_code, int signal) {
  Write(Begin("worker_exited").Add(worker).AddEnd(exit_code, signal));
}

void EventLog::WorkerFailed(const Worker& worker, int exit_code, int signal,
                            absl::string_view reason) {
  Write(Begin("worker_failed").Add(worker).AddEnd(exit_code, signal).Add("reason", reason));
}

void EventLog::HeartbeatLost(const Worker& worker, absl::Duration silent_for) {
  Write(Begin("heartbeat_lost").Add(worker).Add("silent_for", silent_for));
}

void EventLog::Stall(const Worker& worker, absl::string_view operation, absl::Duration waited,
                     absl::string_view missing, absl::string_view text) {
  Write(Begin("stall")
            .Add(worker)
            .Add("operation", operation)
            .Add("waited", waited)
            .Add("missing", missing)
            .Add("text", text));
}

void EventLog::StallEnded(const Worker& worker, absl::string_view operation,
                          absl::Duration waited) {
  Write(Begin("stall_ended").Add(worker).Add("operation", operation).Add("waited", waited));
}

void EventLog::Restart(int restarts, int max_restarts, absl::string_view reason) {
  Write(Begin("restart")
            .Add("restarts", restarts)
            .Add("max_restarts", max_restarts)
            .Add("reason", reason));
}

void EventLog::StopSignal(absl::string_view signal) {
  Write(Begin("stop_signal").Add("signal", signal));
}

void EventLog::NodeJoined(absl::string_view node, absl::string_view host) {
  Write(Begin("node_joined").Add("other_node", node).Add("other_host", host));
}

void EventLog::NodeLeft(absl::string_view node, absl::string_view host) {
  Write(Begin("node_left").Add("other_node", node).Add("other_host", host));
}

void EventLog::NodeLost(absl::string_view node, absl::string_view host, absl::Duration silent_for) {
  Write(Begin("node_lost")
            .Add("other_node", node)
            .Add("other_host", host)
            .Add("silent_for", silent_for));
}

void EventLog::StoreRehosted(absl::string_view address) {
  Write(Begin("store_rehosted").Add("address", address));
}

}  // namespace syncline::launch
