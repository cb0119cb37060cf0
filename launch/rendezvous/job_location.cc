#include "launch/rendezvous/job_location.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launch/rendezvous/try_get.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

constexpr absl::string_view kLocation = "position";
constexpr absl::string_view kAnnouncements = "notice/";

std::string AnnouncementKey(int number) { return absl::StrCat(kAnnouncements, number); }

}  // namespace

absl::StatusOr<std::optional<JobLocation>> ReadLocation(Store& store) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto found, TryGet(store, {std::string(kLocation)}));
  if (!found.has_value()) return std::nullopt;
  SYNCLINE_ASSIGN_OR_RETURN(JobLocation location, ParseLocation(found->front()));
  return location;
}

absl::Status WriteLocation(Store& store, const JobLocation& location) {
  return store.Set(kLocation, Serialize(location));
}

absl::StatusOr<bool> ReplaceLocation(Store& store, const std::optional<JobLocation>& from,
                                     const JobLocation& to) {
  const std::string expected = from.has_value() ? Serialize(*from) : "";
  SYNCLINE_ASSIGN_OR_RETURN(const auto result,
                            store.CompareSet(kLocation, expected, Serialize(to)));
  return result.value == Serialize(to);
}

absl::StatusOr<std::string> OpenInstance(Store& store, const std::string& proposal) {
  JobLocation here;
  here.state = JobLocation::State::kHere;
  here.instance = proposal;
  SYNCLINE_ASSIGN_OR_RETURN(const auto result, store.CompareSet(kLocation, "", Serialize(here)));
  SYNCLINE_ASSIGN_OR_RETURN(const JobLocation location, ParseLocation(result.value));
  if (location.state == JobLocation::State::kHere) return location.instance;
  return StoreError("the endpoint is the store of a node that meets with the others elsewhere");
}

std::shared_ptr<Store> InstanceStore(std::shared_ptr<Store> store, absl::string_view instance) {
  return std::make_shared<PrefixStore>(absl::StrCat("instance/", instance), std::move(store));
}

absl::StatusOr<InstanceHistory> ReadHistory(Store& instance) {
  InstanceHistory history;
  // Announcements are numbered without gaps, so their number is that of the last one. From there
  // back to the last round: nothing before it counts.
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, instance.Keys(kAnnouncements));
  history.announcements = static_cast<int>(keys.size());
  for (int number = history.announcements; number > 0; --number) {
    SYNCLINE_ASSIGN_OR_RETURN(const auto found, TryGet(instance, {AnnouncementKey(number)}));
    if (!found.has_value()) return StoreError("the history of the job is being removed");
    SYNCLINE_ASSIGN_OR_RETURN(Announcement announcement, ParseAnnouncement(found->front()));
    // The log ends with kMoved, unless that lost the race for its number and somebody else wrote
    // on.
    const bool is_last = number == history.announcements;
    if (is_last && announcement.kind == Announcement::Kind::kMoved) {
      history.state = InstanceHistory::State::kMoved;
      history.moved_to = announcement.address;
    }
    if (announcement.kind == Announcement::Kind::kClosed) {
      history.state = InstanceHistory::State::kClosed;
    }
    if (announcement.kind != Announcement::Kind::kRound) continue;
    history.last = std::move(announcement.round);
    break;
  }
  return history;
}

absl::Status WriteHistory(Store& instance, const Round& last, const Announcement& over) {
  // Compare-and-set, not Set: a node that died after the first of the two writes may have left them
  // half done, and another node may be ahead of this one.
  Announcement round;
  round.round = last;
  SYNCLINE_RETURN_IF_ERROR(instance.CompareSet(AnnouncementKey(1), "", Serialize(round)).status());
  return instance.CompareSet(AnnouncementKey(2), "", Serialize(over)).status();
}

absl::StatusOr<bool> AnnounceMove(Store& instance, const InstanceHistory& history,
                                  const std::string& address) {
  // The number after the last one that was read: if the log has grown since, this fails, and the
  // caller compares the histories again.
  Announcement moved;
  moved.kind = Announcement::Kind::kMoved;
  moved.address = address;
  SYNCLINE_ASSIGN_OR_RETURN(
      const auto result,
      instance.CompareSet(AnnouncementKey(history.announcements + 1), "", Serialize(moved)));
  return result.swapped;
}

}  // namespace syncline::launch
