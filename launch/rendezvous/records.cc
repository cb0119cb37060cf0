#include "launch/rendezvous/records.h"

#include <exception>
#include <limits>
#include <stdexcept>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "core/base/origin_line.h"
#include "nlohmann/json.hpp"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;

constexpr int kLowest = std::numeric_limits<int>::min(), kHighest = std::numeric_limits<int>::max();
// More rounds than any job has: what is counted from one of them still fits.
constexpr int kMaxRounds = 1 << 30;

// Json's own conversion makes some number of one that does not fit, and truncates fractions.
template <typename T>
void ReadNumber(const Json& json, const char* name, T low, T high, T& value) {
  const Json& field = json.at(name);
  const bool fits = field.is_number_unsigned()
                        ? field.get<uint64_t>() <= static_cast<uint64_t>(high)
                        : field.is_number_integer() && field.get<int64_t>() >= low &&
                              field.get<int64_t>() <= high;
  if (!fits) {
    throw std::out_of_range(absl::StrCat(name, " is not a whole number from ", low, " to ", high));
  }
  value = field.get<T>();
}

template <typename Enum>
void ReadEnum(const Json& json, const char* name, Enum last, Enum& value) {
  int number = 0;
  ReadNumber(json, name, 0, static_cast<int>(last), number);
  value = static_cast<Enum>(number);
}

Json ToJson(const FailureNote& note) {
  return {{"remoteness", note.remoteness}, {"time", note.time},
          {"exit_code", note.exit_code},   {"retry", static_cast<int>(note.retry)},
          {"summary", note.summary},       {"report", note.report}};
}

FailureNote NoteFrom(const Json& json) {
  FailureNote note;
  ReadNumber(json, "remoteness", 0, 2, note.remoteness);
  json.at("time").get_to(note.time);
  ReadNumber(json, "exit_code", kLowest, kHighest, note.exit_code);
  ReadEnum(json, "retry", FailureNote::Retry::kNever, note.retry);
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
  ReadNumber(json, "pid", 0, kHighest, node.pid);
  json.at("address").get_to(node.address);
  json.at("store").get_to(node.store);
  ReadNumber(json, "master_port", 0, 65535, node.master_port);
  json.at("role").get_to(node.role);
  ReadNumber(json, "workers", 0, base::kMaxRanks, node.workers);
  ReadNumber(json, "wanted_rank", -1, base::kMaxRanks, node.wanted_rank);
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
  ReadNumber(json, "number", 0, kMaxRounds, round.number);
  ReadNumber(json, "restarts", 0, kMaxRounds, round.restarts);
  int workers = 0;
  for (const Json& member : json.at("members")) {
    round.members.push_back(IdentityFrom(member));
    workers += round.members.back().workers;
    if (workers > base::kMaxRanks) throw std::out_of_range("a round has too many workers");
  }
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
  ReadNumber(json, "ticket", int64_t{0}, std::numeric_limits<int64_t>::max(), record.join_order);
  ReadEnum(json, "state", NodeRecord::State::kLeft, record.state);
  ReadNumber(json, "round", 0, kMaxRounds, record.round);
  ReadNumber(json, "restarts", 0, kMaxRounds, record.restarts);
  ReadNumber(json, "rank", -1, base::kMaxRanks, record.rank);
  record.failure = OptionalNote(json.at("failure"));
  json.at("reason").get_to(record.reason);
  return record;
}

Announcement AnnouncementFrom(const Json& json) {
  Announcement announcement;
  ReadEnum(json, "kind", Announcement::Kind::kMoved, announcement.kind);
  announcement.round = RoundFrom(json.at("round"));
  ReadNumber(json, "over", 0, kMaxRounds, announcement.over);
  json.at("reason").get_to(announcement.reason);
  ReadEnum(json, "cause", Announcement::Cause::kStoreLost, announcement.cause);
  ReadNumber(json, "exit_code", kLowest, kHighest, announcement.exit_code);
  announcement.failure = OptionalNote(json.at("failure"));
  json.at("address").get_to(announcement.address);
  return announcement;
}

JobLocation LocationFrom(const Json& json) {
  JobLocation location;
  ReadEnum(json, "state", JobLocation::State::kSearching, location.state);
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
    int version = 0;
    ReadNumber(json, "version", kLowest, kHighest, version);
    if (version != kVersion) {
      return StoreError(absl::StrCat("the rendezvous holds records of version ", version,
                                     ", this launcher reads version ", kVersion,
                                     ": run the same release on all nodes"));
    }
    return from(json);
  } catch (const std::exception& error) {
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
