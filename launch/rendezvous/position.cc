#include "launch/rendezvous/position.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/store/prefix_store.h"
#include "launch/rendezvous/peek.h"

namespace syncline {
namespace {

constexpr absl::string_view kPosition = "position";
constexpr absl::string_view kNotices = "notice/";

std::string NoticeKey(int number) { return absl::StrCat(kNotices, number); }

}  // namespace

absl::StatusOr<std::optional<Position>> ReadPosition(Store& store) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto found, Peek(store, {std::string(kPosition)}));
  if (!found.has_value()) return std::nullopt;
  SYNCLINE_ASSIGN_OR_RETURN(Position position, ParsePosition(found->front()));
  return position;
}

absl::Status WritePosition(Store& store, const Position& position) {
  return store.Set(kPosition, Serialize(position));
}

absl::StatusOr<bool> ReplacePosition(Store& store, const std::optional<Position>& from,
                                     const Position& to) {
  const std::string expected = from.has_value() ? Serialize(*from) : "";
  SYNCLINE_ASSIGN_OR_RETURN(const auto result,
                            store.CompareSet(kPosition, expected, Serialize(to)));
  return result.value == Serialize(to);
}

absl::StatusOr<std::string> OpenInstance(Store& store, const std::string& proposal) {
  Position here;
  here.state = Position::State::kHere;
  here.instance = proposal;
  SYNCLINE_ASSIGN_OR_RETURN(const auto result, store.CompareSet(kPosition, "", Serialize(here)));
  SYNCLINE_ASSIGN_OR_RETURN(const Position position, ParsePosition(result.value));
  if (position.state == Position::State::kHere) return position.instance;
  return StoreError("the endpoint is the store of a node that meets with the others elsewhere");
}

std::shared_ptr<Store> InstanceStore(std::shared_ptr<Store> store, absl::string_view instance) {
  return std::make_shared<PrefixStore>(absl::StrCat("instance/", instance), std::move(store));
}

absl::StatusOr<InstanceHistory> ReadHistory(Store& instance) {
  InstanceHistory history;
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, instance.Keys(kNotices));
  history.announcements = static_cast<int>(keys.size());
  for (int number = history.announcements; number > 0; --number) {
    SYNCLINE_ASSIGN_OR_RETURN(const auto found, Peek(instance, {NoticeKey(number)}));
    if (!found.has_value()) return StoreError("the history of the job is being removed");
    SYNCLINE_ASSIGN_OR_RETURN(Announcement announcement, ParseAnnouncement(found->front()));
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
  Announcement round;
  round.round = last;
  SYNCLINE_RETURN_IF_ERROR(instance.CompareSet(NoticeKey(1), "", Serialize(round)).status());
  return instance.CompareSet(NoticeKey(2), "", Serialize(over)).status();
}

absl::StatusOr<bool> AnnounceMove(Store& instance, const InstanceHistory& history,
                                  const std::string& address) {
  Announcement moved;
  moved.kind = Announcement::Kind::kMoved;
  moved.address = address;
  SYNCLINE_ASSIGN_OR_RETURN(
      const auto result,
      instance.CompareSet(NoticeKey(history.announcements + 1), "", Serialize(moved)));
  return result.swapped;
}

}  // namespace syncline
