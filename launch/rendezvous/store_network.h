// Connects a launcher to the rendezvous' stores over TCP, files and etcd.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_STORE_NETWORK_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_STORE_NETWORK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launch/options/options.h"
#include "launch/rendezvous/rendezvous_network.h"
#include "syncline/store.h"

namespace syncline::launch {

struct StoreNetworkOptions {
  RendezvousOptions rendezvous;
  std::string secret;           // The job's secret, which clients and servers prove to know.
  absl::Duration call_timeout;  // A store hosted by a node counts as lost after a call this long.
};

// The endpoint as host:port.
std::string EndpointAddress(const RendezvousOptions& rendezvous);

// Whether the store runs inside one of the job's launchers (backends c10d and static), so that
// another launcher can replace it.
bool IsHostedByNodes(const RendezvousOptions& rendezvous);

// With the backends c10d and static one node hosts the store of the endpoint and the others connect
// to it; with file and etcd all nodes connect. Threads: as RendezvousNetwork says.
std::unique_ptr<RendezvousNetwork> MakeStoreNetwork(StoreNetworkOptions options);

// The store of a running job for an observer, as the endpoint names it; hosts nothing. NetworkError
// or TimeoutError if the endpoint cannot be reached within `timeout`.
absl::StatusOr<std::shared_ptr<Store>> FindRunningJob(const StoreNetworkOptions& options,
                                                      absl::Duration timeout);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_STORE_NETWORK_H_
