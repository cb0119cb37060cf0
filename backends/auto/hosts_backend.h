// Ranks on several hosts, some of which have several: shared memory inside, TCP between.
#ifndef SYNCLINE_BACKENDS_AUTO_HOSTS_BACKEND_H_
#define SYNCLINE_BACKENDS_AUTO_HOSTS_BACKEND_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "backends/auto/passage.h"
#include "backends/auto/topology.h"
#include "backends/auto/wires.h"
#include "backends/common/call.h"
#include "backends/common/roster.h"
#include "backends/gloo/collective.h"
#include "backends/gloo/gloo_backend.h"
#include "core/group/backend.h"
#include "gloo/context.h"

namespace syncline {

// A group of backend gloo, and beside it one of backend shm on each host with several ranks, and
// lanes of wires between the hosts.
//
// Every call is one of gloo's: that watches over the peers, ends waits and finds who is to blame.
// What is different is how the ranks agree on their call, and how most data go: within a host
// through shared memory, and between hosts on lanes, by few ranks. If a step fails, the call fails
// as if a connection of gloo's had broken; where one does, all other waits end.
class HostsBackend final : public Backend {
 public:
  // Collective. Null on all ranks, one of which logs why, if some host's cannot share memory.
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
  absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                      const CallContext& context) override;
  absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root,
                       const CallContext& context) override;
  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op,
                             const CallContext& context) override;
  absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs,
                        const CallContext& context) override;
  absl::Status Barrier(const CallContext& context) override;

  // A receive from any rank can wait at one place only.
  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override {
    return gloo_->Send(tensor, dst, context);
  }
  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override {
    return gloo_->Recv(tensor, src, context);
  }

  void Abort(const absl::Status& cause) override;

 private:
  HostsBackend(const Roster& roster, const Topology& topology)
      : roster_(roster), topology_(topology) {}

  absl::Status JoinGloo(const BackendConfig& config);
  absl::Status JoinWires(const BackendConfig& config);
  absl::Status JoinHost(const BackendConfig& config);
  void AbortAllButGloo(const absl::Status& cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The way of every collective: `move` gets it done, all ranks having agreed or being about to.
  absl::Status Run(const Call& call, const CallContext& context,
                   absl::FunctionRef<absl::Status(Passage&)> move);
  // Of those that gloo gets done once all ranks have agreed.
  absl::Status RunInGloo(const Call& call, const CallContext& context,
                         absl::FunctionRef<void(Collective&)> move);
  using Move =
      absl::FunctionRef<absl::Status(Passage&, const std::shared_ptr<gloo::Context>& gloo)>;
  absl::Status Perform(const Call& call, const CallContext& context, Move move);

  // The error of a step, in terms of the group: shared memory knows ranks by their places, wires
  // only those of their lane. So gloo is left to find out which are to blame.
  absl::Status Judge(const absl::Status& status, const CallContext& context, int gone_before);

  void OnPeerGone(const GlooBackend& gloo);
  // Returns once one more has gone than `before`, or soon.
  void AwaitGoneMoreThan(int before);
  int gone();

  // "; rank 3 (host b, pid 81) is stopped", for every such process of this host.
  std::string StoppedHere() const;

  const Roster roster_;
  const Topology topology_;
  Memory memory_;
  absl::Mutex mutex_;
  int gone_ ABSL_GUARDED_BY(mutex_) = 0;  // How often a peer has left or was lost.
  bool has_lost_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Backend> host_;      // Null if this rank is alone here. Both are set, under
  std::unique_ptr<Wires> wires_;       // mutex_, while joining; null if it is on no lane.
  std::unique_ptr<GlooBackend> gloo_;  // Destroyed first: its watch uses the others.
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_AUTO_HOSTS_BACKEND_H_
