// Backend hierarchical: ranks on several nodes, some of which have several ranks. Shared memory
// within the nodes, TCP between them.
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_HIERARCHICAL_BACKEND_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_HIERARCHICAL_BACKEND_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "backends/common/comparison.h"
#include "backends/common/peer_table.h"
#include "backends/common/scratch_arena.h"
#include "backends/common/typed_backend.h"
#include "backends/hierarchical/hierarchical_call.h"
#include "backends/hierarchical/rail_history.h"
#include "backends/hierarchical/rail_sockets.h"
#include "backends/hierarchical/record_teller.h"
#include "backends/hierarchical/thresholds.h"
#include "backends/hierarchical/topology.h"
#include "backends/shm/shm_backend.h"
#include "backends/tcp/tcp_backend.h"
#include "syncline/backend.h"

namespace syncline::hierarchical {

// Built on three transports: backend tcp over all ranks, backend shm over the ranks of each node
// with several, and RailSockets between the nodes.
//
// Every call is an operation of tcp's: tcp watches the peers, ends waits and finds the ranks at
// fault. Only the comparison of the calls and the way of the data differ: within a node through
// shared memory, between nodes over the rails, by few ranks. If a step fails, the call fails as if
// a connection of tcp's had broken. If a connection of tcp's breaks, all other waits end.
//
// Threads, ownership and errors are those of Backend; no error shows a local rank.
class HierarchicalBackend final : public backends::TypedBackend {
 public:
  // Collective. Null on all ranks, one of which logs why, if the ranks of some node cannot share
  // memory or the rails cannot be connected. `peers` and `topology` describe the group of `config`.
  // Other errors are those of TcpBackend::Make, and of config.check_peers, which must be there.
  static absl::StatusOr<std::shared_ptr<Backend>> Make(const BackendConfig& config,
                                                       const backends::PeerTable& peers,
                                                       const Topology& topology);

  ~HierarchicalBackend() override;

  absl::string_view name() const override { return "hierarchical"; }

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

  // Between ranks of one node through shared memory. A receive from any rank is posted there and in
  // tcp, where its thread sleeps.
  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override;
  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override;

  void Abort(const absl::Status& cause) override;

 private:
  using TcpBackend = tcp::TcpBackend;

  HierarchicalBackend(const backends::PeerTable& peers, const Topology& topology)
      : backends::TypedBackend(peers.rank(), peers.size()),
        peers_(peers),
        topology_(topology),
        latency_max_bytes_(is_each_alone() ? kLatencyMaxBytesAlone : kLatencyMaxBytes),
        rooted_max_bytes_(topology_.node_count() > kMaxNodesAtOnce ? latency_max_bytes_
                                                                   : kLatencyMaxBytes),
        may_go_ahead_(backends::DefaultComparison() == backends::Comparison::kAsTheyGo) {}

  bool is_each_alone() const { return topology_.max_local_size == 1; }
  // Whether ranks do not meet in a call if it has few bytes, and whether it has.
  bool MayGoAhead(const Collective& call) const;
  // The same on all ranks that make the same call.
  Meeting MeetingOf(const Collective& call) const;
  bool IsRelayed(const Collective& call) const;
  // Whether an operation with a root takes the latency algorithm, by its tensor: in gather and
  // scatter the part of one rank.
  bool IsSmall(OpKind kind, const Tensor& tensor) const;

  absl::Status JoinTcp(const BackendConfig& config);
  // While joining, after JoinTcp: a NetworkError that names who has died, or has left if none may
  // have.
  absl::Status CheckPeers(const BackendConfig& config, bool may_have_left) const;
  absl::Status JoinRail(const BackendConfig& config);
  absl::Status JoinNode(const BackendConfig& config);
  void FailShmAndRail() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Runs a collective whose algorithm is `algorithm`, which compares the ranks' calls.
  absl::Status RunAlgorithm(const CallContext& context,
                            absl::FunctionRef<absl::Status(HierarchicalCall&)> algorithm);
  // Compares the ranks' calls, then runs an algorithm in which each rank uses its connections of
  // tcp's to others.
  using PairwiseAlgorithm =
      absl::FunctionRef<absl::Status(HierarchicalCall&, backends::MessageCollectives&)>;
  absl::Status RunPairwise(const CallContext& context, PairwiseAlgorithm algorithm);
  using Body = absl::FunctionRef<absl::Status(HierarchicalCall&, TcpBackend::Operation&)>;
  absl::Status Execute(const CallContext& context, Body body);

  bool IsInNode(int rank) const { return topology_.node_of[rank] == topology_.node; }
  // Runs a send or receive that needs the ranks `awaited`.
  absl::Status RunMessage(const CallContext& context, absl::Span<const int> awaited,
                          absl::FunctionRef<absl::Status()> body);
  absl::StatusOr<int> RecvFromAny(const Tensor& tensor, const CallContext& context);
  // An operation of this rank has failed: ends what waits beside tcp.
  void EndNodeAndRail();

  // The error of a step in terms of the group: shared memory knows only the ranks of the node,
  // which may wait for others, and rails only their members. So this leaves tcp to find out which
  // ranks are at fault, unless ranks go ahead.
  absl::Status ToGroupError(const absl::Status& status, const CallContext& context, int gone_before,
                            bool goes_ahead);
  // The same of a message within the node.
  absl::Status ToMessageError(const absl::Status& status, const CallContext& context,
                              int gone_before);

  // Before this rank does something that may take long: others may wait to hear which collectives
  // it has been in. False if that has to be tried again: one is under way, or a kernel is full.
  bool TellOfCalls();

  void OnPeerGone(const TcpBackend& tcp);
  // Waits until more than `before` peers have gone, or an operation of this rank has failed, for
  // `limit` at most.
  void AwaitPeerGone(int before, absl::Duration limit = kPeerGoneGrace);
  int gone_count();

  // The TimeoutError of a call, which names the ranks of this node whose processes are stopped.
  absl::Status TimeoutOf(const CallContext& context) const;

  const backends::PeerTable peers_;
  const Topology topology_;
  // The largest of latency algorithms: of operations without a root, and of those with one.
  const size_t latency_max_bytes_, rooted_max_bytes_;
  // Whether ranks need not meet in rooted collectives of few bytes, or meet through others in other
  // ones. The same on all ranks.
  const bool may_go_ahead_;
  backends::ScratchArena arena_;
  // Held by whoever moves bytes on the rail, or uses its history: a collective, TellOfCalls, and
  // Abort after the last operation. Taken before mutex_.
  absl::Mutex rail_mutex_;
  absl::Mutex mutex_;
  // How many times a peer has left or was lost. Abort counts as one, as does an operation of this
  // rank that has failed.
  int gone_count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool has_lost_peer_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_aborted_ ABSL_GUARDED_BY(mutex_) = false;  // What is beside tcp.
  // shm_ is null if this rank is alone on its node, rail_ if it is on no rail. Both are set under
  // mutex_ while joining, when the watch of tcp_ already runs, and constant afterwards.
  std::shared_ptr<shm::NodeBackend> shm_;
  std::unique_ptr<RailSockets> rail_;
  std::unique_ptr<RailHistory> history_;  // Of the rail.
  std::unique_ptr<RecordTeller> teller_;  // Of the history; null where it has nothing to tell.
  std::unique_ptr<TcpBackend> tcp_;  // The last member: its watch uses the others until it ends.
};

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_HIERARCHICAL_BACKEND_H_
