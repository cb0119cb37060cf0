// Where the nodes of a job meet: finding, hosting and re-hosting its store.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_MEETING_PLACE_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_MEETING_PLACE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/deadline.h"
#include "core/store.h"
#include "launch/options/options.h"
#include "launch/rendezvous/records.h"
#include "store/tcp_server.h"

namespace syncline {

// An open store, below the prefix of the job.
struct MeetingPlace {
  std::shared_ptr<Store> store;
  std::string address;                // host:port, or the file; for people and for probes.
  std::unique_ptr<TCPServer> server;  // If this node hosts it at the endpoint.
};

struct MeetingPlaceOptions {
  RendezvousOptions rendezvous;
  std::string secret;           // Of the job; see JobSecret().
  absl::Duration call_timeout;  // Of calls to a store of ours; then it counts as lost.
};

// host:port of the endpoint.
std::string EndpointAddress(const RendezvousOptions& rendezvous);

// Whether another node can take a lost store's place: it is held by one of the nodes.
bool IsHostedByNodes(const RendezvousOptions& rendezvous);

// Opens the store of the endpoint: c10d and static by hosting it, where that falls to this node,
// or connecting to it; the others by connecting. Tries until the deadline, or until `cancelled`,
// which is asked every second; gives up at once on who answers and refuses.
absl::StatusOr<MeetingPlace> OpenMeetingPlace(const MeetingPlaceOptions& options,
                                              const Deadline& deadline,
                                              const std::function<bool()>& cancelled);

// Connects to a store of ours at host:port, within `patience`.
absl::StatusOr<MeetingPlace> ConnectTo(const MeetingPlaceOptions& options,
                                       const std::string& address, absl::Duration patience);

// A store that a node serves becomes a meeting place when that node opens it: when it has lost the
// former one, and all nodes before it in the last round cannot be reached. The history of the job,
// as that node knows it, comes with it.
absl::Status OpenAtNode(Store& store, const Round& last);
// When that node goes on elsewhere: its store can be opened again.
void CloseAtNode(Store& store);
// Whether members of the round meet here: ids are unique, so it is their job.
absl::StatusOr<bool> IsPlaceOf(Store& store, const Round& round);
// Waits until it is open.
absl::Status AwaitOpening(Store& store, absl::Duration patience);

// Tells all who meet at `store` that the job goes on at `address`, unless that is what is known
// there, or `store` belongs to a job with a longer history than `round`.
absl::Status RedirectTo(Store& store, const std::string& address, int round);

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_MEETING_PLACE_H_
