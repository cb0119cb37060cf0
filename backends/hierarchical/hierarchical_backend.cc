#include "backends/hierarchical/hierarchical_backend.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "backends/common/listener.h"
#include "backends/common/shm_availability.h"
#include "backends/hierarchical/bandwidth_algorithms.h"
#include "backends/hierarchical/latency_algorithms.h"
#include "backends/hierarchical/thresholds.h"
#include "backends/tcp/thresholds.h"
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

// The error of a comparison in full. If some have not come to it, `seen`, the difference that this
// rank has seen by itself, says more.
absl::Status OrSeen(const absl::Status& compared, const absl::Status& seen) {
  const ErrorKind kind = KindOf(compared);
  const bool is_cut_off = kind == ErrorKind::kNetwork || kind == ErrorKind::kTimeout;
  return is_cut_off && !seen.ok() ? seen : compared;
}

}  // namespace

// Backend tcp comes first: from then on the death of a rank ends every wait, also those for the
// rails and for shared memory, by CheckPeers. These two may fail without an error of the group,
// which then does without.
absl::StatusOr<std::shared_ptr<Backend>> HierarchicalBackend::Make(const BackendConfig& config,
                                                                   const backends::PeerTable& peers,
                                                                   const Topology& topology) {
  std::shared_ptr<HierarchicalBackend> backend(new HierarchicalBackend(peers, topology));
  SYNCLINE_RETURN_IF_ERROR(backend->JoinTcp(config));
  BackendConfig bounded = config;
  bounded.deadline = backends::ShmJoinDeadline(config.deadline);
  absl::Status joined = backend->JoinRail(bounded);
  if (joined.ok()) joined = backend->JoinNode(bounded);
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_available, backends::ShmIsAvailable(config, joined, [&] {
                              return backend->CheckPeers(config, /*may_have_left=*/true);
                            }));
  if (!is_available) return nullptr;
  return backend;
}

absl::Status HierarchicalBackend::JoinTcp(const BackendConfig& config) {
  BackendConfig group = config;
  group.store = std::make_shared<PrefixStore>("tcp", config.store);
  SYNCLINE_ASSIGN_OR_RETURN(
      tcp_, TcpBackend::Make(group, [this](const TcpBackend& tcp) { OnPeerGone(tcp); }));
  return absl::OkStatus();
}

// Of other hosts only the watch of tcp_ hears at once. Once this rank has said how its joining
// went, others may have joined, and have left.
absl::Status HierarchicalBackend::CheckPeers(const BackendConfig& config,
                                             bool may_have_left) const {
  SYNCLINE_RETURN_IF_ERROR(config.check_peers());
  std::vector<int> gone = tcp_->lost();
  for (const int rank : tcp_->others()) {
    const bool is_known = std::find(gone.begin(), gone.end(), rank) != gone.end();
    if (!may_have_left && !is_known && !tcp_->IsConnected(rank)) gone.push_back(rank);
  }
  if (gone.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const int rank : gone) names.push_back(peers_.Describe(rank));
  return WithRanks(NetworkError(absl::StrCat("the connection to ", absl::StrJoin(names, ", "),
                                             " has ended while ranks were joining")),
                   gone);
}

absl::Status HierarchicalBackend::JoinRail(const BackendConfig& config) {
  std::unique_ptr<backends::Listener> listener;
  absl::StatusOr<std::string> endpoint = "";
  if (topology_.local_rank < topology_.rail_count) {
    auto opened = backends::Listener::Open(
        config.local_address.empty() ? "127.0.0.1" : config.local_address, config.more_addresses);
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
                                [&] { return CheckPeers(config, /*may_have_left=*/false); }));
  if (listener == nullptr) return absl::OkStatus();
  std::vector<RailSockets::Member> members;
  for (int rank : topology_.rail()) {
    members.push_back({rank, peers.Describe(rank), peers.payload(rank)});
  }
  SYNCLINE_ASSIGN_OR_RETURN(
      auto rail,
      RailSockets::Connect(*listener, members, topology_.node, tcp_->streams(), config.deadline,
                           [&] { return CheckPeers(config, /*may_have_left=*/false); }));
  absl::MutexLock lock(&mutex_);
  rail_ = std::move(rail);
  history_ = std::make_unique<RailHistory>(topology_, *rail_);
  // OnPeerGone has come before there was anything to abort.
  if (has_lost_peer_) rail_->Abort();
  // Only leaders go ahead.
  if (!may_go_ahead_ || topology_.local_rank != 0) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(teller_, RecordTeller::Start([this] { return TellOfCalls(); }));
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
  node.check_peers = [&] { return CheckPeers(config, /*may_have_left=*/false); };
  // HierarchicalCall has ranks meet wherever what it tells other hosts rests on a comparison.
  SYNCLINE_ASSIGN_OR_RETURN(auto shm, shm::MakeNode(node, backends::DefaultComparison(),
                                                    {local_ranks, [this](int rank) {
                                                       tcp_->Ring(topology_.local_ranks()[rank]);
                                                     }}));
  absl::MutexLock lock(&mutex_);
  shm_ = std::move(shm);
  if (has_lost_peer_) shm_->Abort(NetworkError("a rank was lost"));
  return absl::OkStatus();
}

HierarchicalBackend::~HierarchicalBackend() {
  Abort(BackendError("the backend was destroyed"));
  teller_.reset();  // It uses the others.
}

// Backend tcp first: an operation that another transport wakes looks there for the reason.
void HierarchicalBackend::Abort(const absl::Status& cause) {
  if (tcp_ != nullptr) tcp_->Abort(cause);
  const RailSockets* rail;
  {
    absl::MutexLock lock(&mutex_);
    ++gone_count_;
    rail = is_aborted_ ? nullptr : rail_.get();
  }
  // Others may not have taken yet what this rank has given them.
  if (rail != nullptr && tcp_->has_left()) {
    absl::MutexLock rail_lock(&rail_mutex_);
    history_->Flush(tcp::kLeaveTimeout);
    rail->AcknowledgeNow();  // If they leave too.
    rail->AwaitDelivery(tcp::kLeaveTimeout);
  }
  absl::MutexLock lock(&mutex_);
  if (tcp_ != nullptr && !tcp_->has_left()) return FailShmAndRail();
  is_aborted_ = true;
  if (shm_ != nullptr) shm_->Abort(cause);
  if (rail_ != nullptr) rail_->Abort();
}

// The node's other ranks find out over tcp why the group has failed.
void HierarchicalBackend::FailShmAndRail() {
  is_aborted_ = true;
  if (shm_ != nullptr) shm_->Fail(NetworkError("the group has failed"));
  if (rail_ != nullptr) rail_->Abort();
}

// A peer that has only left ends no waits: it has done its part of all operations.
void HierarchicalBackend::OnPeerGone(const TcpBackend& tcp) {
  absl::MutexLock lock(&mutex_);
  ++gone_count_;
  if (tcp.lost().empty()) {
    // Whoever has left waits until others have what it gave them.
    if (rail_ != nullptr) rail_->AcknowledgeNow();
    return;
  }
  has_lost_peer_ = true;
  FailShmAndRail();
}

int HierarchicalBackend::gone_count() {
  absl::MutexLock lock(&mutex_);
  return gone_count_;
}

void HierarchicalBackend::AwaitPeerGone(int before, absl::Duration limit) {
  absl::MutexLock lock(&mutex_);
  auto more = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return gone_count_ > before; };
  Deadline(limit).Await(mutex_, absl::Condition(&more));
}

// Backend tcp's diagnosis names the ranks that have not come to the operation. A rank that has come
// and is stopped inside of shared memory is not among them.
absl::Status HierarchicalBackend::TimeoutOf(const CallContext& context) const {
  std::string text =
      absl::StrCat("not complete after ", absl::FormatDuration(context.deadline.timeout()));
  std::vector<int> stopped;
  for (int rank : topology_.local_ranks()) {
    if (peers_.LivenessOf(rank) != base::Liveness::kStopped) continue;
    absl::StrAppend(&text, "; ", peers_.Describe(rank), " is stopped");
    stopped.push_back(rank);
  }
  // Shared memory knows the ranks of this node alone, and whom it blames may wait for another.
  const bool is_on_rail = rail_ != nullptr;
  for (const absl::Status& late : {is_on_rail ? history_->Late() : absl::OkStatus(),
                                   is_on_rail ? rail_->late() : absl::OkStatus(), tcp_->late()}) {
    if (stopped.empty() && !late.ok()) return late;
  }
  return WithRanks(TimeoutError(text), std::move(stopped));
}

absl::Status HierarchicalBackend::ToGroupError(const absl::Status& status,
                                               const CallContext& context, int gone_before,
                                               bool goes_ahead) {
  if (IsInterrupted(status)) return status;
  // Shared memory and the rails may notice a death before tcp does. This rank is about to close
  // tcp's connections, after which tcp could no longer tell whose end was the first. Another rank's
  // time may have been up, too, in another call.
  if (!context.deadline.Expired()) AwaitPeerGone(gone_before);
  // Another rank may have given up a moment before this one would have, and closed its connections.
  if (context.deadline.Expired()) {
    // Of shared memory, which knows whom this rank awaits there. Where ranks meet, the one that it
    // names may wait for another node.
    const bool is_known = KindOf(status) == ErrorKind::kTimeout && !RanksOf(status).empty() &&
                          (rail_ == nullptr || history_->Late().ok());
    return goes_ahead && is_known ? status : TimeoutOf(context);
  }
  // A rail alone has broken.
  if (gone_count() == gone_before && rail_ != nullptr && !rail_->ended().ok()) {
    return rail_->ended();
  }
  return NetworkError("the connections were closed");
}

absl::Status HierarchicalBackend::ToMessageError(const absl::Status& status,
                                                 const CallContext& context, int gone_before) {
  if (status.ok() || IsInterrupted(status) || IsMismatchOfMessages(status)) return status;
  // A mismatch of a collective: all ranks are about to exchange their calls over tcp, which this
  // call would end if it failed before that does.
  const bool is_of_collective = KindOf(status) == ErrorKind::kMismatch;
  do {
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
    AwaitPeerGone(gone_before, std::min(kPeerGoneGrace, context.deadline.Remaining()));
  } while (is_of_collective && gone_count() == gone_before && !context.deadline.Expired());
  if (context.deadline.Expired()) {
    return TimeoutError(
        absl::StrCat("not complete after ", absl::FormatDuration(context.deadline.timeout())));
  }
  return NetworkError("the connections were closed");
}

// A rank that has gone ahead is not there to quote more of its call than its record shows. Where
// the root is not a leader, its node's leader would go between.
bool HierarchicalBackend::MayGoAhead(const Collective& call) const {
  return may_go_ahead_ && HasRoot(call.kind) && topology_.local_rank_of[call.peer] == 0 &&
         call.user_tensors == nullptr;
}

Meeting HierarchicalBackend::MeetingOf(const Collective& call) const {
  if (MayGoAhead(call)) {
    return IsSmall(call.kind, *call.tensor) ? Meeting::kNone : Meeting::kDirect;
  }
  return may_go_ahead_ && IsRelayed(call) ? Meeting::kRelayed : Meeting::kDirect;
}

bool HierarchicalBackend::IsSmall(OpKind kind, const Tensor& tensor) const {
  const bool has_parts = kind == OpKind::kGather || kind == OpKind::kScatter;
  // A leader of several ranks handles the parts of all.
  const size_t bytes =
      tensor.nbytes() * (has_parts && !is_each_alone() ? topology_.node_of.size() : 1);
  if (bytes <= latency_max_bytes_) return true;
  if (bytes > rooted_max_bytes_) return false;
  const auto others = static_cast<size_t>(topology_.node_count() - 1);
  return kind != OpKind::kReduce || bytes * others <= kReduceMaxBytesOfOthers;
}

bool HierarchicalBackend::IsRelayed(const Collective& call) const {
  if (topology_.node_count() < kMinNodesToRelay) return false;
  switch (call.kind) {
    case OpKind::kBarrier:
      return true;
    case OpKind::kAllReduce:
      return call.tensor->nbytes() <= latency_max_bytes_;
    case OpKind::kAllGather:
      return TotalBytes(call.outputs) <= latency_max_bytes_;
    case OpKind::kReduceScatter:
      return TotalBytes(call.inputs) <=
             (is_each_alone() ? kRelayedReduceScatterMaxBytesAlone : latency_max_bytes_);
    default:
      return false;
  }
}

bool HierarchicalBackend::TellOfCalls() {
  if (!may_go_ahead_) return true;
  if (!rail_mutex_.TryLock()) return false;
  bool is_usable;
  {
    // After an error, what others send would still go to the memory of the call that has failed. A
    // rank that leaves tells by itself.
    absl::MutexLock lock(&mutex_);
    is_usable = rail_ != nullptr && !is_aborted_ && !tcp_->is_leaving();
  }
  bool is_told = !is_usable;
  try {
    if (is_usable) history_->Tell();
    is_told = is_told || !history_->has_untold();
  } catch (const std::bad_alloc&) {  // Nothing is lost: it is told later.
  }
  rail_mutex_.Unlock();
  return is_told;
}

absl::Status HierarchicalBackend::Execute(const CallContext& context, Body body) {
  absl::MutexLock rail_lock(&rail_mutex_);
  const int gone_before = gone_count();
  const Meeting meeting = MeetingOf(*context.collective);
  const auto run = [&](TcpBackend::Operation& operation) -> absl::Status {
    HierarchicalCall steps({topology_, shm_.get(), rail_.get(), history_.get(), arena_, meeting},
                           context);
    const absl::Status status = body(steps, operation);
    if (status.ok()) return status;
    if (steps.has_mismatch()) {
      // Those that have not found the mismatch find it now, so all come to GatherCalls, unless some
      // have gone ahead.
      if (steps.AbortPeers()) return OrSeen(operation.GatherCalls(), steps.seen_mismatch());
      // One that has found a difference between nodes says what it is.
      if (!steps.is_of_other_nodes()) return status;
      return ToGroupError(NetworkError("nodes made different calls"), context, gone_before, false);
    }
    // Backend tcp has compared the calls, or this rank's history: it is for the user as it is.
    if (KindOf(status) == ErrorKind::kMismatch) return status;
    return ToGroupError(status, context, gone_before, meeting == Meeting::kNone);
  };
  const auto who_is_awaited = [&] {
    TcpBackend::Awaited awaited;
    if (rail_ != nullptr) awaited = history_->WhoIsAwaited();
    return awaited.ranks.empty() && shm_ != nullptr ? shm_->WhoIsAwaited() : awaited;
  };
  const TcpBackend::AwaitedNow awaited_now = who_is_awaited;
  // In longer calls than those that go ahead, too, a rank may first wait in one before.
  const bool needs_not_all =
      is_each_alone() ? MayGoAhead(*context.collective) : meeting == Meeting::kNone;
  absl::Cleanup end = [this] { EndNodeAndRail(); };  // By an exception, too.
  absl::Status status = tcp_->Execute(context, run, needs_not_all ? &awaited_now : nullptr);
  if (!status.ok()) return status;
  std::move(end).Cancel();
  if (teller_ != nullptr && history_->has_untold()) teller_->ToldLater();
  return status;
}

// The group has failed: other ranks may still wait for this one in shared memory. Or this rank
// leaves, for which the call came too late: then others still take what it has given them.
void HierarchicalBackend::EndNodeAndRail() {
  if (tcp_->is_leaving()) return;
  absl::MutexLock lock(&mutex_);
  ++gone_count_;
  FailShmAndRail();
}

absl::Status HierarchicalBackend::RunMessage(const CallContext& context,
                                             absl::Span<const int> awaited,
                                             absl::FunctionRef<absl::Status()> body) {
  const absl::Status status = tcp_->ExecuteMessage(context, awaited, body);
  if (!status.ok()) EndNodeAndRail();
  return status;
}

absl::Status HierarchicalBackend::Send(const Tensor& tensor, int dst, const CallContext& context) {
  TellOfCalls();
  if (!IsInNode(dst)) {
    const absl::Status status = tcp_->Send(tensor, dst, context);
    if (!status.ok()) EndNodeAndRail();
    return status;
  }
  const int gone_before = gone_count();
  return RunMessage(context, {dst}, [&] {
    // Shared memory would take the message, which nobody receives.
    if (gone_before > 0 && !tcp_->IsConnected(dst)) {
      return NetworkError(absl::StrCat("the connection to ", peers_.Describe(dst), " has ended"));
    }
    return ToMessageError(shm_->Send(tensor, topology_.local_rank_of[dst], context), context,
                          gone_before);
  });
}

absl::StatusOr<int> HierarchicalBackend::Recv(const Tensor& tensor, int src,
                                              const CallContext& context) {
  TellOfCalls();
  if (src == kAnySource && shm_ != nullptr) return RecvFromAny(tensor, context);
  if (src == kAnySource || !IsInNode(src)) {
    absl::StatusOr<int> sender = tcp_->Recv(tensor, src, context);
    if (!sender.ok()) EndNodeAndRail();
    return sender;
  }
  const int gone_before = gone_count();
  SYNCLINE_RETURN_IF_ERROR(RunMessage(context, {src}, [&] {
    return ToMessageError(shm_->Recv(tensor, topology_.local_rank_of[src], context).status(),
                          context, gone_before);
  }));
  return src;
}

absl::StatusOr<int> HierarchicalBackend::RecvFromAny(const Tensor& tensor,
                                                     const CallContext& context) {
  const int gone_before = gone_count();
  int sender = kAnySource;
  SYNCLINE_RETURN_IF_ERROR(RunMessage(context, tcp_->others(), [&]() -> absl::Status {
    const auto in_node = shm_->NewReceive(static_cast<int>(context.collective->tag));
    SYNCLINE_ASSIGN_OR_RETURN(sender, tcp_->RecvUnlessTwin(tensor, context, *in_node));
    if (sender != kAnySource) return absl::OkStatus();
    const absl::StatusOr<int> local = shm_->Complete(*in_node, tensor, context);
    if (!local.ok()) return ToMessageError(local.status(), context, gone_before);
    sender = topology_.local_ranks()[*local];
    return absl::OkStatus();
  }));
  return sender;
}

absl::Status HierarchicalBackend::RunAlgorithm(
    const CallContext& context, absl::FunctionRef<absl::Status(HierarchicalCall&)> algorithm) {
  return Execute(context,
                 [&](HierarchicalCall& steps, TcpBackend::Operation&) { return algorithm(steps); });
}

absl::Status HierarchicalBackend::RunPairwise(const CallContext& context,
                                              PairwiseAlgorithm algorithm) {
  return Execute(context,
                 [&](HierarchicalCall& steps, TcpBackend::Operation& operation) -> absl::Status {
                   SYNCLINE_RETURN_IF_ERROR(LatencyAllReduce(steps, Tensor(), ReduceOp::kSum));
                   backends::MessageCollectives collectives = operation.collectives();
                   return algorithm(steps, collectives);
                 });
}

absl::Status HierarchicalBackend::Broadcast(const Tensor& tensor, int root,
                                            const CallContext& context) {
  return RunAlgorithm(context, [&](HierarchicalCall& steps) {
    return IsSmall(OpKind::kBroadcast, tensor) ? LatencyBroadcast(steps, tensor, root)
                                               : BandwidthBroadcast(steps, tensor, root);
  });
}

absl::Status HierarchicalBackend::AllReduce(const Tensor& tensor, ReduceOp op,
                                            const CallContext& context) {
  return RunAlgorithm(context, [&](HierarchicalCall& steps) {
    return tensor.nbytes() <= latency_max_bytes_ ? LatencyAllReduce(steps, tensor, op)
                                                 : BandwidthAllReduce(steps, tensor, op);
  });
}

absl::Status HierarchicalBackend::Reduce(const Tensor& tensor, ReduceOp op, int root,
                                         const CallContext& context) {
  return RunAlgorithm(context, [&](HierarchicalCall& steps) {
    return IsSmall(OpKind::kReduce, tensor) ? LatencyReduce(steps, tensor, op, root)
                                            : BandwidthReduce(steps, tensor, op, root);
  });
}

absl::Status HierarchicalBackend::AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                                            const CallContext& context) {
  return RunAlgorithm(context, [&](HierarchicalCall& steps) {
    return TotalBytes(outputs) <= latency_max_bytes_ ? LatencyAllGather(steps, outputs, input)
                                                     : BandwidthAllGather(steps, outputs, input);
  });
}

absl::Status HierarchicalBackend::ReduceScatter(const Tensor& output,
                                                absl::Span<const Tensor> inputs, ReduceOp op,
                                                const CallContext& context) {
  const bool is_small = TotalBytes(inputs) <= latency_max_bytes_;
  if (!is_small && !topology_.is_even()) {
    return RunPairwise(context, [&](auto&, auto& collectives) {
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
  if (IsSmall(OpKind::kGather, input)) {
    return RunAlgorithm(context, [&](HierarchicalCall& steps) {
      return LatencyGather(steps, outputs, input, root);
    });
  }
  if (is_each_alone()) {
    return RunAlgorithm(context, [&](HierarchicalCall& steps) {
      return BandwidthGather(steps, outputs, input, root);
    });
  }
  return RunPairwise(context, [&](auto& steps, auto& collectives) {
    return PairwiseGather(steps, collectives, outputs, input, root);
  });
}

absl::Status HierarchicalBackend::Scatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                          int root, const CallContext& context) {
  if (IsSmall(OpKind::kScatter, output)) {
    return RunAlgorithm(context, [&](HierarchicalCall& steps) {
      return LatencyScatter(steps, output, inputs, root);
    });
  }
  if (is_each_alone()) {
    return RunAlgorithm(context, [&](HierarchicalCall& steps) {
      return BandwidthScatter(steps, output, inputs, root);
    });
  }
  return RunPairwise(context, [&](auto& steps, auto& collectives) {
    return PairwiseScatter(steps, collectives, output, inputs, root);
  });
}

// The sizes of two ranks need not be equal, only fit each other, which fingerprints cannot show.
absl::Status HierarchicalBackend::AllToAll(absl::Span<const Tensor> outputs,
                                           absl::Span<const Tensor> inputs,
                                           const CallContext& context) {
  return Execute(
      context, [&](HierarchicalCall& steps, TcpBackend::Operation& operation) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(
            const Exchanged exchanged,
            is_each_alone() ? LatencyAllToAllAlone(steps, outputs, inputs, kAtOnceMaxBytesAlone)
                            : LatencyAllToAll(steps, outputs, inputs, kLatencyMaxBytesAlone));
        if (exchanged == Exchanged::kAll) return absl::OkStatus();
        // Backend tcp compares the sizes pair by pair.
        if (exchanged == Exchanged::kNotEven) {
          SYNCLINE_RETURN_IF_ERROR(operation.CompareCalls());
        }
        backends::MessageCollectives collectives = operation.collectives();
        return PairwiseAllToAll(steps, collectives, outputs, inputs);
      });
}

absl::Status HierarchicalBackend::Barrier(const CallContext& context) {
  return RunAlgorithm(context, [&](HierarchicalCall& steps) {
    return LatencyAllReduce(steps, Tensor(), ReduceOp::kSum);
  });
}

}  // namespace syncline::hierarchical
