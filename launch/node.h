// Starts this node's services: the job store, and its participant in the rendezvous.
#ifndef SYNCLINE_LAUNCH_NODE_H_
#define SYNCLINE_LAUNCH_NODE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launch/clock.h"
#include "launch/job_store.h"
#include "launch/options/options.h"
#include "launch/rendezvous/participant.h"

namespace syncline::launch {

// The secret that the user gives (SYNCLINE_SECRET_FILE), which all nodes of the job prove to each
// other to know. Empty on one node, and if the user gives none: then the launcher makes one. For
// several nodes that is SecretOfId(run id), which keeps jobs apart, but keeps strangers out only if
// the id is secret. ArgumentError if the file cannot be used.
absl::StatusOr<std::string> GivenSecret(const LaunchOptions& options);
std::string SecretOfId(const std::string& id);

// A port that was free a moment ago. Only for MASTER_PORT, which other frameworks open themselves;
// Syncline's own stores keep their ports open. NetworkError without a free port.
absl::StatusOr<int> FindFreePort();

// Owned by Launcher, on the main thread.
struct Node {
  std::unique_ptr<JobStore> store;  // For the workers of rounds in which this node has rank 0.
  std::unique_ptr<Participant> participant;
};

// With several nodes, retries until the name of the endpoint can be resolved; calls `cancelled`
// between attempts, which may wait a little itself. An InterruptScope ends an attempt. NetworkError
// if a name cannot be resolved or the store cannot listen.
absl::StatusOr<Node> StartNode(const LaunchOptions& options, const std::string& secret,
                               const Clock& clock, const std::function<bool()>& cancelled);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_NODE_H_
