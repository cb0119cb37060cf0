// This node of a job: the store that it serves, and its part in the rendezvous.
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

// What the nodes of the job prove to each other to know. On one node, and where the user gives none
// (SYNCLINE_SECRET_FILE), empty: the launcher makes one, which for several nodes follows from the
// job's id, so that it keeps jobs apart but strangers out only if the id is a secret.
absl::StatusOr<std::string> GivenSecret(const LaunchOptions& options);
std::string SecretOfId(const std::string& id);

// A port that was free a moment ago. For MASTER_PORT only, which foreign frameworks want to open
// themselves; Syncline's own stores keep their ports open.
absl::StatusOr<int> FindFreePort();

struct Node {
  std::unique_ptr<JobStore> store;  // For the workers of rounds in which this node has rank 0.
  std::unique_ptr<Participant> participant;
};

// Waits, with several nodes, until the endpoint's name can be resolved; `cancelled` is asked
// between attempts, and may wait a little itself. An InterruptScope ends an attempt.
absl::StatusOr<Node> StartNode(const LaunchOptions& options, const std::string& secret,
                               const Clock& clock, const std::function<bool()>& cancelled);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_NODE_H_
