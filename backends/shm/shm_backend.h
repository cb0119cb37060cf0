// Makes backend shm for other backends, which build on it.
#ifndef SYNCLINE_BACKENDS_SHM_SHM_BACKEND_H_
#define SYNCLINE_BACKENDS_SHM_SHM_BACKEND_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/common/comparison.h"
#include "backends/common/lifecycle.h"
#include "backends/common/twin_receive.h"
#include "backends/common/typed_backend.h"
#include "syncline/backend.h"
#include "syncline/tensor.h"

namespace syncline::shm {

// Makes one rank of a group. Collective. A MismatchError that names the ranks if `comparison` is
// not the same on all of them; other errors are those of a BackendRegistry's factory.
absl::StatusOr<std::shared_ptr<Backend>> MakeShm(const BackendConfig& config,
                                                 backends::Comparison comparison);

// Backend shm over the ranks of one node, as a part of a group that has more ranks: those are the
// node's local ranks here, as arguments and results. Errors give their ranks in the whole group.
//
// Its collectives are those of Backend, and each is a step of one of the whole group:
// CallContext::step_of and meets.
class NodeBackend : public backends::TypedBackend {
 public:
  using backends::TypedBackend::TypedBackend;

  // After a MismatchError of a collective that meets: whether all ranks of the node that have come
  // to it do. Others may have gone on.
  virtual bool AllMeet() const = 0;

  // The ranks that hold up the wait of this rank's collective that is under way, or has failed, by
  // their ranks in the whole group. For the thread of that collective.
  virtual backends::Lifecycle::Awaited WhoIsAwaited() = 0;

  // Abort where the whole group has failed: ends the waits of all ranks of the node, also those
  // that wait for what this one would do when it leaves.
  virtual void Fail(const absl::Status& cause) = 0;

  // To and from a local rank, on behalf of a call of the whole group: `context` is that one's. Recv
  // returns a local rank.
  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override = 0;
  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override = 0;

  // A receive from any rank of the group, for the ranks of the node. If one of them sends while its
  // thread sleeps, NodeOptions::ring wakes it.
  virtual std::unique_ptr<backends::TwinReceive> NewReceive(int tag) = 0;
  // Takes the message of a receive of NewReceive that has matched, and returns the local rank that
  // sent it. Errors are Recv's.
  virtual absl::StatusOr<int> Complete(backends::TwinReceive& receive, const Tensor& tensor,
                                       const CallContext& context) = 0;
};

struct NodeOptions {
  std::vector<int> ranks;  // In the whole group, by local rank.
  // Wakes the threads of local rank `rank`, which may be this one, that sleep in another transport.
  // Must not take a lock that is held while a TwinReceive is asked.
  std::function<void(int rank)> ring;
};

// Makes one rank of a node, as MakeShm. `config` has local ranks.
absl::StatusOr<std::shared_ptr<NodeBackend>> MakeNode(const BackendConfig& config,
                                                      backends::Comparison comparison,
                                                      NodeOptions options);

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_SHM_BACKEND_H_
