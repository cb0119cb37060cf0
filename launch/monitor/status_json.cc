#include "launch/monitor/status_json.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

using Json = nlohmann::ordered_json;

// Reads the fields of one JSON object; remembers the first that has a wrong kind.
class Reader {
 public:
  Reader(const Json& object, std::string* problem) : object_(object), problem_(problem) {
    if (!object_.is_object()) Complain("the whole", "an object");
  }

  void Read(const char* name, std::string* value) const {
    const Json* const field = Find(name);
    if (field == nullptr) return;
    if (!field->is_string()) return Complain(name, "a string");
    *value = field->get<std::string>();
  }

  void Read(const char* name, int* value) const {
    const Json* const field = Find(name);
    if (field == nullptr) return;
    const bool fits = field->is_number_integer() &&
                      field->get<int64_t>() >= std::numeric_limits<int>::min() &&
                      field->get<int64_t>() <= std::numeric_limits<int>::max();
    if (!fits) return Complain(name, "a number of 32 bits");
    *value = field->get<int>();
  }

  void Read(const char* name, int64_t* value) const {
    const Json* const field = Find(name);
    if (field == nullptr) return;
    if (!field->is_number_integer()) return Complain(name, "a whole number");
    *value = field->get<int64_t>();
  }

  void Read(const char* name, absl::Duration* value) const {
    const Json* const field = Find(name);
    if (field == nullptr) return;
    if (!field->is_number()) return Complain(name, "a number of seconds");
    // Written in milliseconds, which decimal fractions only come close to.
    const absl::Duration close = absl::Seconds(field->get<double>());
    *value = absl::Floor(close + absl::Microseconds(500), absl::Milliseconds(1));
  }

  void Read(const char* name, absl::Time* value) const {
    absl::Duration since_epoch = *value - absl::UnixEpoch();
    Read(name, &since_epoch);
    *value = absl::UnixEpoch() + since_epoch;
  }

  template <typename Enum, size_t n>
  void Read(const char* name, const Enum (&values)[n], absl::string_view (*name_of)(Enum),
            Enum* value) const {
    const Json* const field = Find(name);
    if (field == nullptr) return;
    for (const Enum each : values) {
      if (field->is_string() && field->get<std::string>() == name_of(each)) {
        *value = each;
        return;
      }
    }
    Complain(name, "one of the known states");
  }

  // Null also stands for a value that is not known.
  const Json* Find(const char* name) const {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  // The elements of an array.
  std::vector<Json> ReadArray(const char* name) const {
    const Json* const field = Find(name);
    if (field == nullptr) return {};
    if (!field->is_array()) {
      Complain(name, "an array");
      return {};
    }
    return std::vector<Json>(field->begin(), field->end());
  }

 private:
  void Complain(absl::string_view name, absl::string_view expected) const {
    if (problem_->empty()) *problem_ = absl::StrCat(name, " is not ", expected);
  }

  const Json& object_;
  std::string* const problem_;
};

Json SecondsOrNull(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return nullptr;
  // Milliseconds are exact enough, and short.
  return static_cast<double>(absl::ToInt64Milliseconds(duration)) / 1000;
}

Json StallToJson(const std::optional<StallStatus>& stall) {
  if (!stall.has_value()) return nullptr;
  return {{"operation", stall->operation},
          {"missing", stall->missing},
          {"waited", SecondsOrNull(stall->waited)}};
}

Json WorkerToJson(const WorkerStatus& worker) {
  return {{"rank", worker.rank},
          {"local_rank", worker.local_rank},
          {"pid", worker.pid},
          {"state", std::string(StateName(worker.state))},
          {"heartbeat_age", SecondsOrNull(worker.heartbeat_age)},
          {"stall", StallToJson(worker.stall)}};
}

StallStatus StallFromJson(const Json& json, std::string* problem) {
  const Reader reader(json, problem);
  StallStatus stall;
  reader.Read("operation", &stall.operation);
  reader.Read("missing", &stall.missing);
  reader.Read("waited", &stall.waited);
  return stall;
}

WorkerStatus WorkerFromJson(const Json& json, std::string* problem) {
  const Reader reader(json, problem);
  WorkerStatus worker;
  reader.Read("rank", &worker.rank);
  reader.Read("local_rank", &worker.local_rank);
  reader.Read("pid", &worker.pid);
  reader.Read("state", kWorkerStates, StateName, &worker.state);
  reader.Read("heartbeat_age", &worker.heartbeat_age);
  if (const Json* const stall = reader.Find("stall"); stall != nullptr) {
    worker.stall = StallFromJson(*stall, problem);
  }
  return worker;
}

}  // namespace

std::string ToJson(const NodeStatus& status) {
  const JobStatus& job = status.job;
  Json workers = Json::array();
  for (const WorkerStatus& worker : job.workers) workers.push_back(WorkerToJson(worker));
  const Json json = {{"run_id", job.run_id},
                     {"host", status.host},
                     {"pid", status.pid},
                     {"updated", SecondsOrNull(status.updated - absl::UnixEpoch())},
                     {"phase", std::string(PhaseName(job.phase))},
                     {"round", job.round},
                     {"restarts", job.restarts},
                     {"max_restarts", job.max_restarts},
                     {"group_rank", job.group_rank},
                     {"nodes", job.nodes},
                     {"min_nodes", job.min_nodes},
                     {"max_nodes", job.max_nodes},
                     {"world_size", job.world_size},
                     {"elapsed", SecondsOrNull(job.elapsed)},
                     {"stall_warnings", job.stall_warnings},
                     {"last_failure", job.last_failure},
                     {"workers", std::move(workers)}};
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

absl::StatusOr<NodeStatus> NodeStatusFromJson(absl::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return StoreError("a node's status is not JSON");
  std::string problem;
  const Reader reader(json, &problem);
  NodeStatus status;
  JobStatus& job = status.job;
  reader.Read("run_id", &job.run_id);
  reader.Read("host", &status.host);
  reader.Read("pid", &status.pid);
  reader.Read("updated", &status.updated);
  reader.Read("phase", kJobPhases, PhaseName, &job.phase);
  reader.Read("round", &job.round);
  reader.Read("restarts", &job.restarts);
  reader.Read("max_restarts", &job.max_restarts);
  reader.Read("group_rank", &job.group_rank);
  reader.Read("nodes", &job.nodes);
  reader.Read("min_nodes", &job.min_nodes);
  reader.Read("max_nodes", &job.max_nodes);
  reader.Read("world_size", &job.world_size);
  reader.Read("elapsed", &job.elapsed);
  reader.Read("stall_warnings", &job.stall_warnings);
  reader.Read("last_failure", &job.last_failure);
  for (const Json& worker : reader.ReadArray("workers")) {
    job.workers.push_back(WorkerFromJson(worker, &problem));
  }
  if (!problem.empty()) return StoreError(absl::StrCat("a node's status: ", problem));
  return status;
}

}  // namespace syncline::launch
