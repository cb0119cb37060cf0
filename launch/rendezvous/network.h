// How a node reaches the stores in which a job may meet.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_NETWORK_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_NETWORK_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/store/store.h"

namespace syncline {

// A store that the nodes of a job share.
struct MeetingPlace {
  std::shared_ptr<Store> store;  // Below the prefix of the job.
  std::string address;           // host:port, or the file; for people and for probes.
  std::string instance;          // Of the job in a store that a node holds; see position.h.
  std::shared_ptr<void> server;  // Serves the endpoint while it lives, if this node does so.
};

// The launcher's network is over TCP, files and etcd (meeting_place.h); a test simulates one. Calls
// may block for their timeouts. To be called from one thread at a time, except where noted.
class RendezvousNetwork {
 public:
  virtual ~RendezvousNetwork() = default;

  // host:port where nodes meet first, or the file.
  virtual std::string endpoint() const = 0;
  // Whether a node holds the store, so that another one can take its place.
  virtual bool is_hosted_by_nodes() const = 0;

  // Opens the store of the endpoint, which this node hosts where that falls to it. Tries until the
  // timeout, or until `cancelled`, which is asked every second. Gives up at once if somebody
  // answers and refuses.
  virtual absl::StatusOr<MeetingPlace> Open(absl::Duration timeout,
                                            const std::function<bool()>& cancelled) = 0;

  // Serves the endpoint where that may fall to this node and nobody does so. Null: it does not.
  virtual std::shared_ptr<void> ServeEndpoint() = 0;

  struct Reached {
    absl::Status status;
    std::shared_ptr<Store> store;  // Below the prefix of the job. Null: it was not reached.
    bool is_gone = false;          // The host says that nobody listens there.
  };
  // Connects to the store of the node at `address` (host:port), and gives up after `timeout`. A
  // call of that store fails after `call_timeout`, or after that of the network if this is less.
  // Thread-safe.
  virtual Reached Connect(const std::string& address, absl::Duration timeout,
                          absl::Duration call_timeout) = 0;

  // Calls work(0), ..., work(count - 1), many at once, so that several hosts that are down or slow
  // cost one timeout. Returns when all calls have.
  virtual void ForAll(size_t count, const std::function<void(size_t)>& work) = 0;
};

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_NETWORK_H_
