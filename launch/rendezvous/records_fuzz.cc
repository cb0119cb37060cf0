// What other nodes, or whoever else can write to it, have left in a rendezvous' store.
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/testing/fuzz/fuzz.h"
#include "launch/rendezvous/records.h"
#include "launch/rendezvous/round_policy.h"

namespace syncline::fuzz {
namespace {

using launch::Announcement;
using launch::JobLocation;
using launch::NodeRecord;
using launch::Round;

void Use(const Round& round) {
  Require(round.world_size() >= 0, "a round's workers can be counted");
  for (int rank = 0; rank < static_cast<int>(round.members.size()); ++rank) {
    Require(round.FirstWorker(rank) <= round.world_size(), "workers follow one another");
    Require(round.FirstWorkerOfRole(rank) <= round.WorkersOfRole(round.members[rank].role),
            "workers of a role too");
    Require(round.RankOf(round.members[rank].id) <= rank, "a member has a rank");
  }
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  launch::RoundPolicyOptions options;
  options.min_nodes = 1 + reader.Below(2);
  options.max_nodes = options.min_nodes + reader.Below(3);
  options.max_restarts = reader.Below(3);
  launch::RoundPolicy policy(options);
  launch::NodeViews nodes;
  absl::Time now = absl::UnixEpoch();
  while (!reader.is_empty()) {
    const int what = reader.Below(3);
    now += absl::Milliseconds(100) * reader.Byte();
    const absl::string_view text = reader.Text();
    if (what == 0) {
      const auto record = launch::ParseNodeRecord(text);
      if (!record.ok()) continue;
      const auto again = launch::ParseNodeRecord(Serialize(*record));
      Require(again.ok() && Serialize(*again) == Serialize(*record), "a record stays the same");
      nodes[record->identity.id] = {*record, now};
    } else if (what == 1) {
      const auto announcement = launch::ParseAnnouncement(text);
      if (!announcement.ok()) continue;
      const auto again = launch::ParseAnnouncement(Serialize(*announcement));
      Require(again.ok() && Serialize(*again) == Serialize(*announcement),
              "an announcement stays the same");
      Use(announcement->round);
      policy.OnAnnouncement(*announcement, now);
    } else {
      const auto location = launch::ParseLocation(text);
      if (location.ok()) Use(location->last);
    }
    const auto decided = policy.Decide(nodes, now);
    policy.Describe(nodes, now);
    policy.RemovableNodes(nodes, now);
    if (!decided.has_value()) continue;
    // Whoever writes the highest number that there is leaves none for the next round.
    const bool has_number = decided->round.number < 1 << 30 && decided->round.restarts < 1 << 30;
    Require(!has_number || launch::ParseAnnouncement(Serialize(*decided)).ok(),
            "others understand what is decided");
    Use(decided->round);
    policy.OnAnnouncement(*decided, now);
  }
}

std::vector<std::string> Seeds() {
  NodeRecord record;
  record.identity = {"a", "host a", 81, "10.0.0.1", "10.0.0.1:29500", 29501, "default", 2, -1};
  record.join_order = 1;
  NodeRecord other = record;
  other.identity.id = "b";
  other.identity.wanted_rank = 0;
  other.join_order = 2;
  Announcement round;
  round.round = {1, 0, {record.identity, other.identity}, "a node joins"};
  Announcement over;
  over.kind = Announcement::Kind::kOver;
  over.over = 1;
  over.cause = Announcement::Cause::kFailure;
  over.reason = "rank 1 was killed by SIGKILL";
  NodeRecord failed = other;
  failed.state = NodeRecord::State::kFailed;
  failed.round = 1;
  failed.rank = 1;
  failed.failure = launch::FailureNote();
  failed.failure->summary = over.reason;
  Announcement closed = over;
  closed.kind = Announcement::Kind::kClosed;
  closed.failure = failed.failure;
  Announcement moved;
  moved.kind = Announcement::Kind::kMoved;
  moved.address = "10.0.0.2:29500";
  JobLocation location;
  location.state = JobLocation::State::kSearching;
  location.instance = "1";
  location.last = round.round;
  const auto step = [](char what, const std::string& text, char time = 1) {
    return std::string({what, time}) + Text(text);
  };
  const std::string join = step(0, Serialize(record)) + step(0, Serialize(other));
  const std::string start = {0, 1, 1};
  const std::string begun = start + join + step(1, Serialize(round));
  // Numbers that no int holds, or whose sum does not; a state that there is not.
  const auto with = [](const std::string& text, absl::string_view from, absl::string_view to) {
    return absl::StrReplaceAll(text, {{from, to}});
  };
  const std::string workers = "\"workers\":2";
  return {start + step(0, with(Serialize(record), workers, "\"workers\":1e300")),
          start + step(0, with(Serialize(record), workers, "\"workers\":4294967298")),
          start + step(1, with(Serialize(round), workers, "\"workers\":2147483647")),
          start + step(0, with(Serialize(record), "\"state\":0", "\"state\":77")),
          start + step(0, Serialize(record)), start + join + step(0, "", 120) + step(0, "", 120),
          begun + step(0, Serialize(failed)) + step(1, Serialize(over)) + join,
          begun + step(1, Serialize(closed)), begun + step(1, Serialize(moved)),
          start + step(2, Serialize(location)),
          // The end of a round that never was.
          start + step(1, Serialize(over)) + join + step(0, "", 120)};
}

}  // namespace syncline::fuzz
