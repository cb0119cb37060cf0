#include "launch/failure_record.h"

#include <cmath>
#include <tuple>

#include "core/status.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using nlohmann::json;
using Record = WorkerExit::Record;

const char* NameOf(Record record) {
  switch (record) {
    case Record::kError:
      return "error";
    case Record::kPeerError:
      return "peer error";
    case Record::kNone:
      break;
  }
  return "none";
}

// The fields of one JSON object. A field that is not there leaves its variable as it is; one of
// another type is an error, remembered until all have been read.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  void Get(const char* name, int* value) {
    if (const json* field = Find(name, &json::is_number_integer)) *value = field->get<int>();
  }
  void Get(const char* name, std::string* value) {
    if (const json* field = Find(name, &json::is_string)) *value = field->get<std::string>();
  }
  void Get(const char* name, std::vector<std::string>* values) {
    const json* field = Find(name, &json::is_array);
    if (field == nullptr) return;
    for (const json& each : *field) {
      if (each.is_string()) values->push_back(each.get<std::string>());
    }
  }
  double Number(const char* name) {
    const json* field = Find(name, &json::is_number);
    return field == nullptr ? 0 : field->get<double>();
  }

  const std::string& wrong() const { return wrong_; }

 private:
  const json* Find(const char* name, bool (json::*is_type)() const noexcept) {
    const auto found = object_.find(name);
    if (found == object_.end()) return nullptr;
    if (((*found).*is_type)()) return &*found;
    wrong_ = name;
    return nullptr;
  }

  const json& object_;
  std::string wrong_;
};

Record RecordOf(const std::string& name) {
  if (name == NameOf(Record::kPeerError)) return Record::kPeerError;
  return name == NameOf(Record::kError) ? Record::kError : Record::kNone;
}

}  // namespace

bool IsLikelierCause(const FailureRecord& a, const FailureRecord& b) {
  const auto key = [](const FailureRecord& failure) {
    const bool explains_itself = failure.record == Record::kError || failure.signal != 0;
    const int remoteness = failure.record == Record::kPeerError ? 2 : explains_itself ? 0 : 1;
    return std::make_tuple(remoteness, failure.time, failure.signal == 0, failure.rank);
  };
  return key(a) < key(b);
}

std::string ToJson(const FailureRecord& failure) {
  const json object = {
      {"rank", failure.rank},
      {"local_rank", failure.local_rank},
      {"host", failure.host},
      {"pid", failure.pid},
      {"code", failure.code},
      {"signal", failure.signal},
      {"record", NameOf(failure.record)},
      {"time", static_cast<double>(absl::ToUnixMillis(failure.time)) / 1000},
      {"after", absl::ToDoubleSeconds(failure.after)},
      {"round", failure.round},
      {"restarts", failure.restarts},
      {"max_restarts", failure.max_restarts},
      {"explanation", failure.explanation},
      {"message", failure.message},
      {"last_lines", failure.last_lines},
      {"log", failure.log},
      {"also_failed", failure.also_failed},
      {"stopped", failure.stopped},
  };
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

absl::StatusOr<FailureRecord> FailureFromJson(absl::string_view text) {
  const json object = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return ArgumentError("the record of a failure is not a JSON object");
  Fields fields(object);
  FailureRecord failure;
  std::string record;
  fields.Get("rank", &failure.rank);
  fields.Get("local_rank", &failure.local_rank);
  fields.Get("host", &failure.host);
  fields.Get("pid", &failure.pid);
  fields.Get("code", &failure.code);
  fields.Get("signal", &failure.signal);
  fields.Get("record", &record);
  failure.record = RecordOf(record);
  failure.time = absl::FromUnixMillis(std::llround(fields.Number("time") * 1000));
  failure.after = absl::Seconds(fields.Number("after"));
  fields.Get("round", &failure.round);
  fields.Get("restarts", &failure.restarts);
  fields.Get("max_restarts", &failure.max_restarts);
  fields.Get("explanation", &failure.explanation);
  fields.Get("message", &failure.message);
  fields.Get("last_lines", &failure.last_lines);
  fields.Get("log", &failure.log);
  fields.Get("also_failed", &failure.also_failed);
  fields.Get("stopped", &failure.stopped);
  if (fields.wrong().empty()) return failure;
  return ArgumentError("the record of a failure has a field of another type: " + fields.wrong());
}

}  // namespace syncline
