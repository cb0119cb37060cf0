// The stores in which the nodes of a job meet, over TCP, files and etcd.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_MEETING_PLACE_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_MEETING_PLACE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/store/store.h"
#include "launch/options/options.h"
#include "launch/rendezvous/network.h"

namespace syncline {

struct MeetingPlaceOptions {
  RendezvousOptions rendezvous;
  std::string secret;           // Of the job; see JobSecret().
  absl::Duration call_timeout;  // Of calls to a store of ours; then it counts as lost.
};

// host:port of the endpoint.
std::string EndpointAddress(const RendezvousOptions& rendezvous);

// Whether another node can take a lost store's place: it is held by one of the nodes.
bool IsHostedByNodes(const RendezvousOptions& rendezvous);

// The network of a launcher. c10d and static: one of the nodes hosts the store of the endpoint, and
// the others connect to it; the others: all connect. `options` says what all need to know.
std::unique_ptr<RendezvousNetwork> MakeRendezvousNetwork(MeetingPlaceOptions options);

// The store in which the nodes of a running job meet, for one who only looks: as they know it at
// the endpoint.
absl::StatusOr<std::shared_ptr<Store>> FindRunningJob(const MeetingPlaceOptions& options,
                                                      absl::Duration timeout);

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_MEETING_PLACE_H_
