// How a node reaches the stores over which the rendezvous may run.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_RENDEZVOUS_NETWORK_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_RENDEZVOUS_NETWORK_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launch/rendezvous/rendezvous_store.h"
#include "syncline/store.h"

namespace syncline::launch {

// StoreNetwork implements it over TCP, files and etcd (store_network.h); a test simulates one
// (simulation.h). A call may block for its timeout. All calls come from one thread at a time,
// except Connect, which ForAll calls from several.
class RendezvousNetwork {
 public:
  virtual ~RendezvousNetwork() = default;

  // The address that all nodes know from the start: host:port, or the path of the file.
  virtual std::string endpoint() const = 0;
  // Whether a node hosts the store, so that another node can replace it when it is lost.
  virtual bool is_hosted_by_nodes() const = 0;

  // Opens the store of the endpoint; this node hosts it if the options allow that and no other
  // node does. Retries until the timeout, or until `cancelled` returns true, which it asks every
  // second. Returns at once with the error of a server that answers and refuses.
  virtual absl::StatusOr<RendezvousStore> Open(absl::Duration timeout,
                                               const std::function<bool()>& cancelled) = 0;

  // Serves the endpoint if this node may and nobody does so yet. The server runs as long as the
  // result lives. Null: this node does not serve it.
  virtual std::shared_ptr<void> ServeEndpoint() = 0;

  struct ConnectResult {
    absl::Status status;
    std::shared_ptr<Store> store;  // Below the prefix of the job. Null: not connected.
    bool is_refused = false;       // The host is up, and no process listens at the address.
  };
  // Connects to the store of a node at `address` (host:port) within `timeout`. A call of that store
  // fails after `call_timeout`, or after the network's own call timeout if that is shorter.
  // Thread-safe.
  virtual ConnectResult Connect(const std::string& address, absl::Duration timeout,
                                absl::Duration call_timeout) = 0;

  // Calls work(0), ..., work(count - 1) concurrently, so that several hosts that are down or slow
  // cost one timeout together. Returns when all calls have returned.
  virtual void ForAll(size_t count, const std::function<void(size_t)>& work) = 0;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_RENDEZVOUS_NETWORK_H_
