#include "backends/hierarchical/hierarchical_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "backends/common/shm_availability.h"
#include "backends/hierarchical/bandwidth_algorithms.h"
#include "backends/hierarchical/latency_algorithms.h"
#include "backends/hierarchical/listener.h"
#include "backends/hierarchical/thresholds.h"
#include "backends/shm/shm_backend.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline::hierarchical {
namespace {

size_t TotalBytes(absl::Span<const Tensor> tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace

// Gloo comes first: from then on the death of a rank ends every wait, also those for the rails and
// for shared memory. These two may fail without an error of the group, which then does without.
absl::StatusOr<std::shared_ptr<Backend>> HierarchicalBackend::Make(const BackendConfig& config,
                                                                   const backends::PeerTable& peers,
                                                                   const Topology& topology) {
  std::shared_ptr<HierarchicalBackend> backend(new HierarchicalBackend(peers, topology));
  SYNCLINE_RETURN_IF_ERROR(backend->JoinGloo(config));
  BackendConfig bounded = config;
  bounded.deadline = backends::ShmJoinDeadline(config.deadline);
  absl::Status joined = backend->JoinRail(bounded);
  if (joined.ok()) joined = backend->JoinNode(bounded);
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_available,
                            backends::ShmIsAvailable(config, peers, joined));
  if (!is_available) return nullptr;
  return backend;
}

absl::Status HierarchicalBackend::JoinGloo(const BackendConfig& config) {
  BackendConfig group = config;
  group.store = std::make_shared<PrefixStore>("gloo", config.store);
  SYNCLINE_ASSIGN_OR_RETURN(
      gloo_, GlooBackend::Make(group, [this](const GlooBackend& gloo) { OnPeerGone(gloo); }));
  return absl::OkStatus();
}

absl::Status HierarchicalBackend::JoinRail(const BackendConfig& config) {
  std::unique_ptr<Listener> listener;
  absl::StatusOr<std::string> endpoint = "";
  if (topology_.local_rank < topology_.rail_count) {
    auto opened = Listener::Open(config.local_address.empty() ? "127.0.0.1" : config.local_address);
    if (opened.ok()) {
      listener = *std::move(opened);
      endpoint = listener->endpoint();
    } else {
      endpoint = opened.status();
    }
  }
  // Ranks on no rail join the table too, so that all ranks hear of one that cannot listen.
  PrefixStore store("rails", config.store);
  SYNCLINE_ASSIGN_OR_RETURN(
      const backends::PeerTable peers,
      backends::PeerTable::Join(store, config.rank, config.size, endpoint, config.deadline,
                                [this] { return peers_.CheckAlive(); }));
  if (listener == nullptr) return absl::OkStatus();
  std::vector<RailSockets::Member> members;
  for (int rank : topology_.rail()) {
    members.push_back({peers.Describe(rank), peers.payload(rank)});
  }
  SYNCLINE_ASSIGN_OR_RETURN(
      auto rail, RailSockets::Connect(*listener, members, topology_.node, config.deadline));
  absl::MutexLock lock(&mutex_);
  rail_ = std::move(rail);
  // OnPeerGone has come before there was anything to abort.
  if (has_lost_peer_) rail_->Abort();
  return absl::OkStatus();
}

absl::Status HierarchicalBackend::JoinNode(const BackendConfig& config) {
  const std::vector<int>& local_ranks = topology_.local_ranks();
  if (local_ranks.size() == 1) return absl::OkStatus();
  BackendConfig node = config;
  node.store =
      std::make_shared<PrefixStore>(absl::StrCat("node of rank ", local_ranks[0]), config.store);
  node.rank = topology_.local_rank;
  node.size = static_cast<int>(local_ranks.size());
  node.check_peers = [this] { return peers_.CheckAlive(); };
  // What this host tells others of its ranks' calls rests on a comparison that has taken place.
  SYNCLINE_ASSIGN_OR_RETURN(auto shm, shm::MakeShm(node, shm::Comparison::kAtOnce));
  absl::MutexLock lock(&mutex_);
  shm_ = std::move(shm);
  if (has_lost_peer_) shm_->Abort(NetworkError("a rank was lost"));
  return absl::OkStatus();
}

HierarchicalBackend::~HierarchicalBackend() { Abort(BackendError("the backend was destroyed")); }

// Gloo first: an operation that another transport wakes looks there for the reason.
void HierarchicalBackend::Abort(const absl::Status& cause) {
  if (gloo_ != nullptr) gloo_->Abort(cause);
  absl::MutexLock lock(&mutex_);
  ++gone_count_;
  AbortShmAndRail(cause);
}

void HierarchicalBackend::AbortShmAndRail(const absl::Status& cause) {
  if (shm_ != nullptr) shm_->Abort(cause);
  if (rail_ != nullptr) rail_->Abort();
}

// A peer that has only left ends no waits: it has done its part of all operations.
void HierarchicalBackend::OnPeerGone(const GlooBackend& gloo) {
  absl::MutexLock lock(&mutex_);
  ++gone_count_;
  if (!gloo.has_lost_peer()) return;
  has_lost_peer_ = true;
  AbortShmAndRail(NetworkError("a rank was lost"));
}

int HierarchicalBackend::gone_count() {
  absl::MutexLock lock(&mutex_);
  return gone_count_;
}

void HierarchicalBackend::AwaitPeerGone(int before) {
  absl::MutexLock lock(&mutex_);
  auto more = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return gone_count_ > before; };
  Deadline(kPeerGoneGrace).Await(mutex_, absl::Condition(&more));
}

// Gloo's diagnosis names the ranks that have not come to the operation. A rank that has come and is
// stopped inside of shared memory is not among them.
absl::Status HierarchicalBackend::TimeoutOf(const CallContext& context) const {
  std::string text =
      absl::StrCat("not complete after ", absl::FormatDuration(context.deadline.timeout()));
  std::vector<int> stopped;
  for (int rank : topology_.local_ranks()) {
    if (peers_.LivenessOf(rank) != base::Liveness::kStopped) continue;
    absl::StrAppend(&text, "; ", peers_.Describe(rank), " is stopped");
    stopped.push_back(rank);
  }
  return WithRanks(TimeoutError(text), std::move(stopped));
}

absl::Status HierarchicalBackend::ToGroupError(const absl::Status& status,
                                               const CallContext& context, int gone_before) {
  if (IsInterrupted(status)) return status;
  if (KindOf(status) == ErrorKind::kTimeout) return TimeoutOf(context);
  // Shared memory and the rails may notice a death before gloo does. This rank is about to close
  // gloo's connections, after which gloo could no longer tell whose end was the first.
  AwaitPeerGone(gone_before);
  return NetworkError("the connections were closed");
}

absl::Status HierarchicalBackend::Execute(const CallContext& context, Body body) {
  const int gone_before = gone_count();
  const absl::Status status =
      gloo_->Execute(context, [&](GlooBackend::Operation& operation) -> absl::Status {
        HierarchicalCall steps({topology_, shm_.get(), rail_.get(), arena_}, context);
        const absl::Status status = body(steps, operation);
        if (status.ok()) return status;
        if (steps.has_mismatch()) {
          // Those that have not found the mismatch find it now, so all come to GatherCalls.
          steps.AbortPeers();
          return operation.GatherCalls();
        }
        // Gloo has compared the calls, so the mismatch is known to all ranks.
        if (KindOf(status) == ErrorKind::kMismatch) return status;
        return ToGroupError(status, context, gone_before);
      });
  if (!status.ok()) {
    // The group has failed: other ranks may still wait for this one in shared memory.
    absl::MutexLock lock(&mutex_);
    AbortShmAndRail(IsInterrupted(status) ? WithOriginOf(BackendError(status.message()), status)
                                          : status);
  }
  return status;
}

absl::Status HierarchicalBackend::RunAlgorithm(
    const CallContext& context, absl::FunctionRef<absl::Status(HierarchicalCall&)> algorithm) {
  return Execute(
      context, [&](HierarchicalCall& steps, GlooBackend::Operation&) { return algorithm(steps); });
}

absl::Status HierarchicalBackend::RunInGloo(const CallContext& context,
                                            MessageAlgorithm algorithm) {
  return Execute(context,
                 [&](HierarchicalCall& steps, GlooBackend::Operation& operation) -> absl::Status {
                   SYNCLINE_RETURN_IF_ERROR(LatencyAllReduce(steps, Tensor(), ReduceOp::kSum));
                   backends::MessageCollectives collectives = operation.collectives();
                   return algorithm(collectives);
                 });
}

absl::Status HierarchicalBackend::Broadcast(const Tensor& tensor, int root,
                                            const CallContext& context) {
  return RunAlgorithm(context, [&](HierarchicalCall& steps) {
    return tensor.nbytes() <= kLatencyMaxBytes ? LatencyBroadcast(steps, tensor, root)
                                               : BandwidthBroadcast(steps, tensor, root);
  });
}

absl::Status HierarchicalBackend::AllReduce(const Tensor& tensor, ReduceOp op,
                                            const CallContext& context) {
  return RunAlgorithm(context, [&](HierarchicalCall& steps) {
    return tensor.nbytes() <= kLatencyMaxBytes ? LatencyAllReduce(steps, tensor, op)
                                               : BandwidthAllReduce(steps, tensor, op);
  });
}

absl::Status HierarchicalBackend::Reduce(const Tensor& tensor, ReduceOp op, int root,
                                         const CallContext& context) {
  return RunAlgorithm(context, [&](HierarchicalCall& steps) {
    return tensor.nbytes() <= kLatencyMaxBytes ? LatencyReduce(steps, tensor, op, root)
                                               : BandwidthReduce(steps, tensor, op, root);
  });
}

absl::Status HierarchicalBackend::AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                                            const CallContext& context) {
  return RunAlgorithm(context, [&](HierarchicalCall& steps) {
    return TotalBytes(outputs) <= kLatencyMaxBytes ? LatencyAllGather(steps, outputs, input)
                                                   : BandwidthAllGather(steps, outputs, input);
  });
}

absl::Status HierarchicalBackend::ReduceScatter(const Tensor& output,
                                                absl::Span<const Tensor> inputs, ReduceOp op,
                                                const CallContext& context) {
  const bool is_small = TotalBytes(inputs) <= kLatencyMaxBytes;
  if (!is_small && !topology_.is_even()) {
    return RunInGloo(context, [&](backends::MessageCollectives& collectives) {
      return collectives.ReduceScatter(output, inputs, op);
    });
  }
  return RunAlgorithm(context, [&](HierarchicalCall& steps) {
    return is_small ? LatencyReduceScatter(steps, output, inputs, op)
                    : BandwidthReduceScatter(steps, output, inputs, op);
  });
}

absl::Status HierarchicalBackend::Gather(absl::Span<const Tensor> outputs, const Tensor& input,
                                         int root, const CallContext& context) {
  return RunInGloo(context, [&](backends::MessageCollectives& collectives) {
    return collectives.Gather(outputs, input, root);
  });
}

absl::Status HierarchicalBackend::Scatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                          int root, const CallContext& context) {
  return RunInGloo(context, [&](backends::MessageCollectives& collectives) {
    return collectives.Scatter(output, inputs, root);
  });
}

// The sizes of two ranks need not be equal, only fit each other, which fingerprints cannot show. So
// the ranks find the largest and the smallest size of all. If these are equal, all sizes fit;
// otherwise gloo compares them pair by pair.
absl::Status HierarchicalBackend::AllToAll(absl::Span<const Tensor> outputs,
                                           absl::Span<const Tensor> inputs,
                                           const CallContext& context) {
  return Execute(context,
                 [&](HierarchicalCall& steps, GlooBackend::Operation& operation) -> absl::Status {
                   int64_t most = 0, least = std::numeric_limits<int64_t>::max();
                   for (const auto& list : {inputs, outputs}) {
                     for (const Tensor& tensor : list) {
                       most = std::max(most, tensor.numel());
                       least = std::min(least, tensor.numel());
                     }
                   }
                   int64_t bounds[] = {most, -least};  // Negated, so that one maximum serves both.
                   SYNCLINE_RETURN_IF_ERROR(
                       LatencyAllReduce(steps, Tensor(bounds, DType::kInt64, {2}), ReduceOp::kMax));
                   if (bounds[0] != -bounds[1]) {
                     SYNCLINE_RETURN_IF_ERROR(operation.CompareCalls());
                   }
                   return operation.collectives().AllToAll(outputs, inputs);
                 });
}

absl::Status HierarchicalBackend::Barrier(const CallContext& context) {
  return RunAlgorithm(context, [&](HierarchicalCall& steps) {
    return LatencyAllReduce(steps, Tensor(), ReduceOp::kSum);
  });
}

}  // namespace syncline::hierarchical
