#include "launch/rendezvous/records.h"

#include <tuple>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;

Json ToJson(const FailureNote& note) {
  return {{"remoteness", note.remoteness}, {"time", note.time},
          {"exit_code", note.exit_code},   {"retry", static_cast<int>(note.retry)},
          {"summary", note.summary},       {"report", note.report}};
}

FailureNote NoteFrom(const Json& json) {
  FailureNote note;
  json.at("remoteness").get_to(note.remoteness);
  json.at("time").get_to(note.time);
  json.at("exit_code").get_to(note.exit_code);
  note.retry = static_cast<FailureNote::Retry>(json.at("retry").get<int>());
  json.at("summary").get_to(note.summary);
  json.at("report").get_to(note.report);
  return note;
}

Json ToJson(const NodeIdentity& node) {
  return {{"id", node.id},           {"host", node.host},       {"pid", node.pid},
          {"address", node.address}, {"store", node.store},     {"master_port", node.master_port},
          {"role", node.role},       {"workers", node.workers}, {"wanted_rank", node.wanted_rank}};
}

NodeIdentity IdentityFrom(const Json& json) {
  NodeIdentity node;
  json.at("id").get_to(node.id);
  json.at("host").get_to(node.host);
  json.at("pid").get_to(node.pid);
  json.at("address").get_to(node.address);
  json.at("store").get_to(node.store);
  json.at("master_port").get_to(node.master_port);
  json.at("role").get_to(node.role);
  json.at("workers").get_to(node.workers);
  json.at("wanted_rank").get_to(node.wanted_rank);
  return node;
}

Json ToJson(const Round& round) {
  Json members = Json::array();
  for (const NodeIdentity& member : round.members) members.push_back(ToJson(member));
  return {{"number", round.number},
          {"restarts", round.restarts},
          {"members", std::move(members)},
          {"reason", round.reason}};
}

Round RoundFrom(const Json& json) {
  Round round;
  json.at("number").get_to(round.number);
  json.at("restarts").get_to(round.restarts);
  for (const Json& member : json.at("members")) round.members.push_back(IdentityFrom(member));
  json.at("reason").get_to(round.reason);
  return round;
}

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value.has_value() ? ToJson(*value) : Json();
}

std::optional<FailureNote> OptionalNote(const Json& json) {
  if (json.is_null()) return std::nullopt;
  return NoteFrom(json);
}

NodeRecord RecordFrom(const Json& json) {
  NodeRecord record;
  record.identity = IdentityFrom(json.at("identity"));
  json.at("ticket").get_to(record.join_order);
  record.state = static_cast<NodeRecord::State>(json.at("state").get<int>());
  json.at("round").get_to(record.round);
  json.at("restarts").get_to(record.restarts);
  json.at("rank").get_to(record.rank);
  record.failure = OptionalNote(json.at("failure"));
  json.at("reason").get_to(record.reason);
  return record;
}

Announcement AnnouncementFrom(const Json& json) {
  Announcement announcement;
  announcement.kind = static_cast<Announcement::Kind>(json.at("kind").get<int>());
  announcement.round = RoundFrom(json.at("round"));
  json.at("over").get_to(announcement.over);
  json.at("reason").get_to(announcement.reason);
  announcement.cause = static_cast<Announcement::Cause>(json.at("cause").get<int>());
  json.at("exit_code").get_to(announcement.exit_code);
  announcement.failure = OptionalNote(json.at("failure"));
  json.at("address").get_to(announcement.address);
  return announcement;
}

JobLocation LocationFrom(const Json& json) {
  JobLocation location;
  location.state = static_cast<JobLocation::State>(json.at("state").get<int>());
  json.at("instance").get_to(location.instance);
  json.at("address").get_to(location.address);
  location.last = RoundFrom(json.at("last"));
  return location;
}

// Replaces bytes that are not UTF-8: a worker's last lines may contain any, and an announcement
// must not fail because of them.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <typename T>
absl::StatusOr<T> Parse(absl::string_view text, T (*from)(const Json&)) {
  try {
    const Json json = Json::parse(text.begin(), text.end());
    if (const int version = json.at("version").get<int>(); version != kVersion) {
      return StoreError(absl::StrCat("the rendezvous holds records of version ", version,
                                     ", this launcher reads version ", kVersion,
                                     ": run the same release on all nodes"));
    }
    return from(json);
  } catch (const Json::exception& error) {
    return StoreError(absl::StrCat("the rendezvous holds a record that cannot be read (",
                                   error.what(), "): ", text.substr(0, 200)));
  }
}

}  // namespace

bool FailureNote::operator<(const FailureNote& other) const {
  return std::tie(remoteness, time) < std::tie(other.remoteness, other.time);
}

std::string NodeIdentity::ToString() const {
  return absl::StrCat("node ", address, " (host ", host, ", pid ", pid, ")");
}

int Round::RankOf(absl::string_view id) const {
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].id == id) return static_cast<int>(rank);
  }
  return -1;
}

int Round::world_size() const { return FirstWorker(static_cast<int>(members.size())); }

int Round::FirstWorker(int rank) const {
  int first = 0;
  for (int before = 0; before < rank; ++before) first += members[before].workers;
  return first;
}

int Round::FirstWorkerOfRole(int rank) const {
  int first = 0;
  for (int before = 0; before < rank; ++before) {
    if (members[before].role == members[rank].role) first += members[before].workers;
  }
  return first;
}

int Round::WorkersOfRole(absl::string_view role) const {
  int workers = 0;
  for (const NodeIdentity& member : members) {
    if (member.role == role) workers += member.workers;
  }
  return workers;
}

std::string Serialize(const NodeRecord& record) {
  return Dump({{"version", kVersion},
               {"identity", ToJson(record.identity)},
               {"ticket", record.join_order},
               {"state", static_cast<int>(record.state)},
               {"round", record.round},
               {"restarts", record.restarts},
               {"rank", record.rank},
               {"failure", OrNull(record.failure)},
               {"reason", record.reason}});
}

std::string Serialize(const Announcement& announcement) {
  return Dump({{"version", kVersion},
               {"kind", static_cast<int>(announcement.kind)},
               {"round", ToJson(announcement.round)},
               {"over", announcement.over},
               {"reason", announcement.reason},
               {"cause", static_cast<int>(announcement.cause)},
               {"exit_code", announcement.exit_code},
               {"failure", OrNull(announcement.failure)},
               {"address", announcement.address}});
}

std::string Serialize(const JobLocation& location) {
  return Dump({{"version", kVersion},
               {"state", static_cast<int>(location.state)},
               {"instance", location.instance},
               {"address", location.address},
               {"last", ToJson(location.last)}});
}

absl::StatusOr<NodeRecord> ParseNodeRecord(absl::string_view text) {
  return Parse<NodeRecord>(text, &RecordFrom);
}

absl::StatusOr<Announcement> ParseAnnouncement(absl::string_view text) {
  return Parse<Announcement>(text, &AnnouncementFrom);
}

absl::StatusOr<JobLocation> ParseLocation(absl::string_view text) {
  return Parse<JobLocation>(text, &LocationFrom);
}

}  // namespace syncline::launch
