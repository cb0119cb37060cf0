// Where a job meets: what its nodes write about it to their own stores.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_POSITION_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_POSITION_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/store/store.h"
#include "launch/rendezvous/history.h"
#include "launch/rendezvous/records.h"

namespace syncline {

// A job meets in an *instance*: a part of a store, below a name that is never used again. So what
// a slow network delivers late cannot change a later instance in the same store. Every store of the
// job has one key, its position, that says which of its instances is in use, or else where the node
// that serves the store takes part. All functions take a store below the prefix of the job.
//
// A node's store has no position until the node first leaves the endpoint.
absl::StatusOr<std::optional<Position>> ReadPosition(Store& store);
absl::Status WritePosition(Store& store, const Position& position);
// Writes `to` if the position is still `from` (nothing: there was none); returns whether it is `to`
// now.
absl::StatusOr<bool> ReplacePosition(Store& store, const std::optional<Position>& from,
                                     const Position& to);

// The store's instance; it becomes `proposal` if the store has no position yet.
absl::StatusOr<std::string> OpenInstance(Store& store, const std::string& proposal);

// The part of the store that is `instance`.
std::shared_ptr<Store> InstanceStore(std::shared_ptr<Store> store, absl::string_view instance);

// What has been announced in an instance.
struct InstanceHistory {
  Round last;  // The last round; its number is 0 if there was none.
  int announcements = 0;
  enum class State { kGoing, kMoved, kClosed } state = State::kGoing;
  std::string moved_to;  // kMoved.

  History At(const std::string& address) const {
    return {last.number, static_cast<int>(last.members.size()), address};
  }
};
absl::StatusOr<InstanceHistory> ReadHistory(Store& instance);

// Announces in a new instance what is known of the job, unless somebody has done so: its last
// round, and that this is over, as `over` says.
absl::Status WriteHistory(Store& instance, const Round& last, const Announcement& over);

// Announces that the job goes on at `address`, unless something was announced since `history` was
// read. Returns whether it did.
absl::StatusOr<bool> AnnounceMove(Store& instance, const InstanceHistory& history,
                                  const std::string& address);

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_POSITION_H_
