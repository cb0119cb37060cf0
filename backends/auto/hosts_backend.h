// Ranks on several hosts, some of which have several: shared memory inside, TCP between.
#ifndef SYNCLINE_BACKENDS_AUTO_HOSTS_BACKEND_H_
#define SYNCLINE_BACKENDS_AUTO_HOSTS_BACKEND_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "backends/auto/topology.h"
#include "backends/common/call.h"
#include "backends/common/roster.h"
#include "backends/gloo/gloo_backend.h"
#include "backends/gloo/transfers.h"
#include "core/backend.h"

namespace syncline {

// A group of backend gloo, with a group of backend shm on each host with several ranks beside it.
//
// Every call goes the way of gloo's: all ranks agree on it, and gloo watches over the peers, ends
// waits and finds who is to blame. What is different is how the data of large broadcasts and
// reductions, and of all_gather, go: within a host through shared memory, and between hosts on
// lanes, each rank of a lane with a part, so that every byte crosses once and all ranks share the
// work. If shared memory fails, the call fails as if a connection had broken, and where one does,
// waits in shared memory end.
class HostsBackend final : public Backend {
 public:
  // Collective.
  static absl::StatusOr<std::shared_ptr<Backend>> Make(const BackendConfig& config,
                                                       const Roster& roster,
                                                       const Topology& topology);

  ~HostsBackend() override;

  absl::string_view name() const override { return "auto"; }

  absl::Status Broadcast(const Tensor& tensor, int root, const CallContext& context) override;
  absl::Status AllReduce(const Tensor& tensor, ReduceOp op, const CallContext& context) override;
  absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root,
                      const CallContext& context) override;
  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                         const CallContext& context) override;
  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op,
                             const CallContext& context) override;

  // Of these no byte would cross less often. A receive from any rank can wait at one place only.
  absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                      const CallContext& context) override {
    return gloo_->Gather(outputs, input, root, context);
  }
  absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root,
                       const CallContext& context) override {
    return gloo_->Scatter(output, inputs, root, context);
  }
  absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                        const CallContext& context) override {
    return gloo_->AllToAll(outputs, inputs, context);
  }
  absl::Status Barrier(const CallContext& context) override { return gloo_->Barrier(context); }
  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override {
    return gloo_->Send(tensor, dst, context);
  }
  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override {
    return gloo_->Recv(tensor, src, context);
  }

  void Abort(const absl::Status& cause) override;

 private:
  class Passage;

  HostsBackend(const Roster& roster, const Topology& topology)
      : roster_(roster), topology_(topology) {}

  absl::Status Join(const BackendConfig& config);
  absl::Status JoinHost(const BackendConfig& config);

  // The way of a collective of which some goes through shared memory.
  absl::Status Run(const Call& call, const CallContext& context,
                   absl::FunctionRef<absl::Status(Passage&)> move);

  // Of all_gather: the parts of the ranks at place `p` of each host, by this rank's lane.
  void PostPart(size_t p, absl::Span<const Tensor> outputs, const Tensor& input,
                Transfers& messages) const;

  void OnPeerGone(const GlooBackend& gloo);
  // Returns once one more has gone than `before`, or soon.
  void AwaitGoneMoreThan(int before);
  int gone();

  // "; rank 3 (host b, pid 81) is stopped", for every such process of this host.
  std::string StoppedHere() const;

  const Roster roster_;
  const Topology topology_;
  absl::Mutex mutex_;
  int gone_ ABSL_GUARDED_BY(mutex_) = 0;  // How often a peer has left or was lost.
  bool has_lost_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Backend> host_;  // Null if this rank is alone here. Set, under mutex_, by Join.
  std::unique_ptr<GlooBackend> gloo_;  // Destroyed first: its watch uses the others.
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_AUTO_HOSTS_BACKEND_H_
