// Reads and writes the key that says where a job runs its rendezvous, and the history found there.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_JOB_LOCATION_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_JOB_LOCATION_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launch/rendezvous/history.h"
#include "launch/rendezvous/records.h"
#include "syncline/store.h"

namespace syncline::launch {

// Where nodes host the store, the rendezvous runs in an *instance*: the part of a store below a
// name that is never used again, so that a request which a slow network delivers late cannot change
// a later instance in the same store. Each store of the job has one key, its *location*, that says
// which of its instances is in use, or else where the node that serves the store takes part.
// docs/internals/rendezvous_keys.md describes all keys.
//
// These are functions over a store, thread-safe as it is; `store` means one below the prefix of the
// job, `instance` one below an instance. Errors are the store's (NetworkError, TimeoutError), and
// StoreError for a value that cannot be parsed.

// The store's location; nullopt: none was written. A node's own store has none until the node first
// leaves the endpoint.
absl::StatusOr<std::optional<JobLocation>> ReadLocation(Store& store);
absl::Status WriteLocation(Store& store, const JobLocation& location);
// Writes `to` if the location is still `from` (nullopt: there was none). Returns whether it is `to`
// now, whoever wrote it.
absl::StatusOr<bool> ReplaceLocation(Store& store, const std::optional<JobLocation>& from,
                                     const JobLocation& to);

// The name of the store's instance, which becomes `proposal` if the store has no location yet.
// StoreError if the location redirects to another store.
absl::StatusOr<std::string> OpenInstance(Store& store, const std::string& proposal);

// A view of the store below `instance`. Shares ownership of `store`.
std::shared_ptr<Store> InstanceStore(std::shared_ptr<Store> store, absl::string_view instance);

// A summary of the announcements in an instance.
struct InstanceHistory {
  Round last;  // The last round; its number is 0 if there was none.
  int announcements = 0;
  enum class State { kGoing, kMoved, kClosed } state = State::kGoing;
  std::string moved_to;  // kMoved: the address of the store where the job goes on.

  History At(const std::string& address) const {
    return {last.number, static_cast<int>(last.members.size()), address};
  }
};
absl::StatusOr<InstanceHistory> ReadHistory(Store& instance);

// Begins a new instance with what is known of the job: its last round as announcement 1, and that
// round's end, `over`, as announcement 2. Keeps announcements that exist.
absl::Status WriteHistory(Store& instance, const Round& last, const Announcement& over);

// Announces that the job goes on at `address`, unless something was announced since `history` was
// read. Returns whether it did.
absl::StatusOr<bool> AnnounceMove(Store& instance, const InstanceHistory& history,
                                  const std::string& address);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_JOB_LOCATION_H_
