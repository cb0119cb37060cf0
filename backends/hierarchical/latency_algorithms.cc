#include "backends/hierarchical/latency_algorithms.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "backends/common/tensor_steps.h"
#include "backends/hierarchical/local_steps.h"
#include "backends/hierarchical/relayed_algorithms.h"
#include "backends/hierarchical/rooted_algorithms.h"
#include "syncline/status.h"

namespace syncline::hierarchical {
namespace {

int64_t TotalNumel(absl::Span<const Tensor> tensors) {
  int64_t numel = 0;
  for (const Tensor& tensor : tensors) numel += tensor.numel();
  return numel;
}

constexpr int kAllNodes = -1;

// For leaders: reduces `tensor`, which holds what the node's ranks have, over all nodes, for the
// leader of `root_node` or for all. Whoever needs the result gets every node's elements and
// combines them in the order of the nodes, so the results are bitwise equal on all nodes.
absl::Status ReduceAmongLeaders(HierarchicalCall& call, const Tensor& tensor, ReduceOp op,
                                int root_node) {
  const Topology& topology = call.topology();
  const bool gets_result = root_node == kAllNodes || root_node == topology.node;
  absl::InlinedVector<const void*, 8> terms(topology.node_count(), tensor.data());
  if (call.relays()) {
    SYNCLINE_RETURN_IF_ERROR(RelayTerms(call, tensor, absl::MakeSpan(terms)));
    if (tensor.numel() > 0) Combine(call, tensor, terms, op);
    return absl::OkStatus();
  }
  SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
  for (int node = 0; node < topology.node_count(); ++node) {
    if (node == topology.node) continue;
    if (root_node == kAllNodes || root_node == node) call.Send(node, tensor);
    if (!gets_result) continue;
    const Tensor received = call.arena().Allocate(tensor.dtype(), tensor.numel());
    terms[node] = received.data();
    call.Receive(node, received);
  }
  SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
  // Also of what is sent: the reduction overwrites it.
  SYNCLINE_RETURN_IF_ERROR(call.AwaitAll());
  if (gets_result && tensor.numel() > 0) Combine(call, tensor, terms, op);
  return absl::OkStatus();
}

absl::InlinedVector<int, 4> OtherNodes(const Topology& topology) {
  absl::InlinedVector<int, 4> nodes;
  for (int distance = 1; distance < topology.node_count(); ++distance) {
    nodes.push_back(topology.NodeAt(distance));
  }
  return nodes;
}

// Parts of one size, one of each rank, in one tensor of the arena: in the order of the nodes and
// local ranks.
class PackedParts {
 public:
  PackedParts(HierarchicalCall& call, DType dtype, int64_t count)
      : topology_(call.topology()),
        count_(count),
        whole_(call.arena().Allocate(dtype, count * call.topology().size())) {}

  const Tensor& whole() const { return whole_; }

  // The parts of the ranks of a node, together and by local rank.
  Tensor OfNode(int node) const {
    return whole_.Slice(FirstOf(node) * count_,
                        static_cast<int64_t>(topology_.nodes[node].size()) * count_);
  }
  std::vector<Tensor> OfRanks(int node) const {
    std::vector<Tensor> parts;
    for (const int rank : topology_.nodes[node]) parts.push_back(OfRank(rank));
    return parts;
  }
  Tensor OfRank(int rank) const {
    const int64_t index = FirstOf(topology_.node_of[rank]) + topology_.local_rank_of[rank];
    return whole_.Slice(index * count_, count_);
  }

  // From and to tensors by rank.
  void CopyFrom(absl::Span<const Tensor> tensors) const {
    for (size_t rank = 0; rank < tensors.size(); ++rank) {
      backends::CopyElements(tensors[rank], OfRank(static_cast<int>(rank)));
    }
  }
  void CopyTo(absl::Span<const Tensor> tensors) const {
    for (size_t rank = 0; rank < tensors.size(); ++rank) {
      backends::CopyElements(OfRank(static_cast<int>(rank)), tensors[rank]);
    }
  }

 private:
  // How many ranks the nodes before have.
  int64_t FirstOf(int node) const {
    size_t first = 0;
    for (int before = 0; before < node; ++before) first += topology_.nodes[before].size();
    return static_cast<int64_t>(first);
  }

  const Topology& topology_;
  const int64_t count_;
  const Tensor whole_;
};

// The number of elements of each part of each rank of this node, if all have one; else -1.
absl::StatusOr<int64_t> EvenCountOfNode(HierarchicalCall& call) {
  const int64_t own = call.even_count(call.topology().node);
  int64_t bounds[] = {own, -own};  // Negated, so that one maximum serves both.
  SYNCLINE_RETURN_IF_ERROR(call.AllReduce(Tensor(bounds, DType::kInt64, {2}), ReduceOp::kMax));
  return bounds[0] == -bounds[1] ? own : -1;
}

// Whether a node, whose parts all have one size, sends them behind its record, which tells that
// size: those of a rank are at most `most` bytes together.
bool SendsAtOnce(const HierarchicalCall& call, int node, DType dtype, size_t most) {
  const auto most_of_part =
      static_cast<int64_t>(most / SizeOf(dtype) / static_cast<size_t>(call.topology().size()));
  return call.even_count(node) >= 0 && call.even_count(node) <= most_of_part;
}

// For leaders, in an all_to_all, after CheckFingerprints: takes the parts of nodes that send them
// at once. By node, from each rank there to each rank here.
absl::StatusOr<std::vector<Tensor>> TakeParts(HierarchicalCall& call, DType dtype,
                                              absl::FunctionRef<bool(int node)> sends_at_once) {
  const Topology& topology = call.topology();
  std::vector<Tensor> parts(topology.node_count());
  for (int node = 0; node < topology.node_count(); ++node) {
    if (node == topology.node || !sends_at_once(node)) continue;
    const size_t pairs = topology.nodes[node].size() * topology.local_ranks().size();
    parts[node] = call.arena().Allocate(dtype, static_cast<int64_t>(pairs) * call.even_count(node));
    call.Receive(node, parts[node]);
  }
  SYNCLINE_RETURN_IF_ERROR(call.AwaitAll());
  return parts;
}

}  // namespace

// Every node's first step is one within the node, also where there is nothing to copy yet: it
// compares the calls of the node's ranks before the leader speaks for all of them.
absl::Status LatencyBroadcast(HierarchicalCall& call, const Tensor& tensor, int root) {
  const Topology& topology = call.topology();
  const int root_node = topology.node_of[root], root_local = topology.local_rank_of[root];
  const bool is_root_node = topology.node == root_node;
  if (call.goes_ahead()) return BroadcastAhead(call, tensor, root_node);
  // The root's node gets the tensor before it leaves the node, unless the root is the leader.
  const bool is_local_first = is_root_node && root_local != 0;
  SYNCLINE_RETURN_IF_ERROR(is_local_first ? call.Broadcast(tensor, root_local) : call.Barrier());
  if (call.is_leader()) {
    SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
    Tensor received;
    if (is_root_node) {
      call.SendToAll(tensor);
    } else {
      // Not to the tensor, which another call's elements must not reach.
      received = call.arena().Allocate(tensor.dtype(), tensor.numel());
      call.Receive(root_node, received);
    }
    SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
    SYNCLINE_RETURN_IF_ERROR(call.AwaitAll());
    if (!is_root_node) backends::CopyElements(received, tensor);
  }
  // The last step within the node tells its ranks that all nodes made the same call.
  return is_local_first ? call.Barrier() : call.Broadcast(tensor, 0);
}

namespace {

// Leaves in `tensor` what it may if calls differ: the sum of this node.
absl::Status AllReduceInPlace(HierarchicalCall& call, const Tensor& tensor, ReduceOp op) {
  SYNCLINE_RETURN_IF_ERROR(call.Reduce(tensor, backends::PartialOp(op), 0));
  if (call.is_leader()) {
    SYNCLINE_RETURN_IF_ERROR(ReduceAmongLeaders(call, tensor, op, kAllNodes));
  }
  return absl::OkStatus();
}

}  // namespace

// The caller's tensor is written once all nodes have compared their calls.
absl::Status LatencyAllReduce(HierarchicalCall& call, const Tensor& tensor, ReduceOp op) {
  const bool has_sum_of_node = call.is_leader() && call.has_neighbours() && tensor.numel() > 0;
  const Tensor sum = has_sum_of_node ? CopyOf(call, tensor) : tensor;
  SYNCLINE_RETURN_IF_ERROR(AllReduceInPlace(call, sum, op));
  if (has_sum_of_node) backends::CopyElements(sum, tensor);
  return call.Broadcast(tensor, 0);
}

// The root alone may write its tensor.
absl::Status LatencyReduce(HierarchicalCall& call, const Tensor& tensor, ReduceOp op, int root) {
  const Topology& topology = call.topology();
  const int root_node = topology.node_of[root], root_local = topology.local_rank_of[root];
  if (call.goes_ahead()) return ReduceAhead(call, tensor, op, root_node);
  const bool is_root = topology.local_ranks()[topology.local_rank] == root;
  const bool is_for_another = topology.node == root_node && root_local != 0;
  const bool is_root_with_sum = is_root && call.is_leader() && call.has_neighbours();
  const bool has_sum = is_root_with_sum || (!is_root && (call.is_leader() || is_for_another));
  const Tensor sum = has_sum ? CopyOf(call, tensor) : tensor;
  SYNCLINE_RETURN_IF_ERROR(call.Reduce(sum, backends::PartialOp(op), 0));
  if (call.is_leader()) {
    SYNCLINE_RETURN_IF_ERROR(ReduceAmongLeaders(call, sum, op, root_node));
  }
  if (is_root_with_sum) backends::CopyElements(sum, tensor);
  // The last step within the node, which takes the sum to a root that is not the leader.
  return is_for_another ? call.Broadcast(sum, 0) : call.Barrier();
}

// The parts of a node's ranks need not be neighbours in memory, so they travel in one tensor, in
// the order of the nodes and local ranks.
absl::Status LatencyAllGather(HierarchicalCall& call, absl::Span<const Tensor> outputs,
                              const Tensor& input) {
  const Topology& topology = call.topology();
  const Tensor all = call.arena().Allocate(input.dtype(), TotalNumel(outputs));
  std::vector<Tensor> node_parts, local_parts;  // Slices of `all`.
  int64_t offset = 0;
  for (int node = 0; node < topology.node_count(); ++node) {
    const int64_t begin = offset;
    for (int rank : topology.nodes[node]) {
      if (node == topology.node) local_parts.push_back(all.Slice(offset, outputs[rank].numel()));
      offset += outputs[rank].numel();
    }
    node_parts.push_back(all.Slice(begin, offset - begin));
  }
  SYNCLINE_RETURN_IF_ERROR(call.AllGather(local_parts, input));
  if (call.is_leader() && call.relays()) {
    SYNCLINE_RETURN_IF_ERROR(RelayParts(call, node_parts));
  } else if (call.is_leader()) {
    SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
    for (int node = 0; node < topology.node_count(); ++node) {
      if (node == topology.node) continue;
      call.Send(node, node_parts[topology.node]);
      call.Receive(node, node_parts[node]);
    }
    SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
    SYNCLINE_RETURN_IF_ERROR(call.AwaitAll());
  }
  SYNCLINE_RETURN_IF_ERROR(call.Broadcast(all, 0));
  offset = 0;
  for (const std::vector<int>& ranks : topology.nodes) {
    for (int rank : ranks) {
      backends::CopyElements(all.Slice(offset, outputs[rank].numel()), outputs[rank]);
      offset += outputs[rank].numel();
    }
  }
  return absl::OkStatus();
}

namespace {

// Where each node has one rank: each sends the others their parts, and reduces what comes for it.
absl::Status ReduceScatterAlone(HierarchicalCall& call, const Tensor& output,
                                absl::Span<const Tensor> inputs, ReduceOp op) {
  const Topology& topology = call.topology();
  const auto rank_of = [&](int node) { return topology.nodes[node][0]; };
  absl::InlinedVector<const void*, 8> terms(topology.node_count());
  terms[topology.node] = inputs[rank_of(topology.node)].data();
  SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
  for (const int node : OtherNodes(topology)) {
    call.Send(node, inputs[rank_of(node)]);
    const Tensor received = call.arena().Allocate(output.dtype(), output.numel());
    terms[node] = received.data();
    call.Receive(node, received);
  }
  SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
  SYNCLINE_RETURN_IF_ERROR(call.AwaitAll());
  if (output.numel() > 0) Combine(call, output, terms, op);
  return absl::OkStatus();
}

}  // namespace

// An all_reduce of all parts: of few bytes, messages cost more than bytes. Where each node has one
// rank, parts that go straight to their node are no more messages, unless some are relayed.
absl::Status LatencyReduceScatter(HierarchicalCall& call, const Tensor& output,
                                  absl::Span<const Tensor> inputs, ReduceOp op) {
  const Topology& topology = call.topology();
  if (topology.max_local_size == 1 && !call.relays()) {
    return ReduceScatterAlone(call, output, inputs, op);
  }
  const int own_rank = topology.local_ranks()[topology.local_rank];
  const Tensor all = call.arena().Allocate(output.dtype(), TotalNumel(inputs));
  int64_t offset = 0, own_offset = 0;
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    if (static_cast<int>(rank) == own_rank) own_offset = offset;
    backends::CopyElements(inputs[rank], all.Slice(offset, inputs[rank].numel()));
    offset += inputs[rank].numel();
  }
  SYNCLINE_RETURN_IF_ERROR(AllReduceInPlace(call, all, op));
  SYNCLINE_RETURN_IF_ERROR(call.Broadcast(all, 0));
  backends::CopyElements(all.Slice(own_offset, output.numel()), output);
  return absl::OkStatus();
}

absl::Status LatencyGather(HierarchicalCall& call, absl::Span<const Tensor> outputs,
                           const Tensor& input, int root) {
  const Topology& topology = call.topology();
  const int root_node = topology.node_of[root], root_local = topology.local_rank_of[root];
  const bool is_root_node = topology.node == root_node;
  if (call.goes_ahead()) return GatherAhead(call, outputs, input, root_node);
  // Not in the outputs, which another call's elements must not reach.
  const PackedParts all(call, input.dtype(), input.numel());
  SYNCLINE_RETURN_IF_ERROR(
      call.Gather(call.is_leader() ? all.OfRanks(topology.node) : std::vector<Tensor>(), input, 0));
  if (call.is_leader()) {
    SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
    for (int node = 0; node < topology.node_count() && is_root_node; ++node) {
      if (node != root_node) call.Receive(node, all.OfNode(node));
    }
    if (!is_root_node) call.Send(root_node, all.OfNode(topology.node));
    SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
    SYNCLINE_RETURN_IF_ERROR(call.AwaitAll());
  }
  // The last step within the node, which takes them to a root that is not the leader.
  const bool is_for_another = is_root_node && root_local != 0;
  SYNCLINE_RETURN_IF_ERROR(is_for_another ? call.Broadcast(all.whole(), 0) : call.Barrier());
  if (!outputs.empty()) all.CopyTo(outputs);
  return absl::OkStatus();
}

absl::Status LatencyScatter(HierarchicalCall& call, const Tensor& output,
                            absl::Span<const Tensor> inputs, int root) {
  const Topology& topology = call.topology();
  const int root_node = topology.node_of[root], root_local = topology.local_rank_of[root];
  const bool is_root_node = topology.node == root_node;
  if (call.goes_ahead()) return ScatterAhead(call, output, inputs, root_node);
  const PackedParts all(call, output.dtype(), output.numel());
  if (!inputs.empty()) all.CopyFrom(inputs);
  const bool is_of_another = is_root_node && root_local != 0;
  SYNCLINE_RETURN_IF_ERROR(is_of_another ? call.Broadcast(all.whole(), root_local)
                                         : call.Barrier());
  if (call.is_leader()) {
    SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
    for (int distance = 1; distance < topology.node_count() && is_root_node; ++distance) {
      const int node = topology.NodeAt(distance);
      call.Send(node, all.OfNode(node));
    }
    if (!is_root_node) call.Receive(root_node, all.OfNode(topology.node));
    SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
    SYNCLINE_RETURN_IF_ERROR(call.AwaitAll());
  }
  return call.Scatter(output, call.is_leader() ? all.OfRanks(topology.node) : std::vector<Tensor>(),
                      0);
}

// Where each node has one rank: the parts go straight from and to the caller's memory.
absl::StatusOr<Exchanged> LatencyAllToAllAlone(HierarchicalCall& call,
                                               absl::Span<const Tensor> outputs,
                                               absl::Span<const Tensor> inputs, size_t most) {
  const Topology& topology = call.topology();
  const auto rank_of = [&](int node) { return topology.nodes[node][0]; };
  const DType dtype = inputs[0].dtype();
  const auto sends_at_once = [&](int node) { return SendsAtOnce(call, node, dtype, most); };
  const bool sends = sends_at_once(topology.node);
  SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
  for (const int node : OtherNodes(topology)) {
    if (sends) call.Send(node, inputs[rank_of(node)]);
  }
  SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
  if (!call.all_even() || !sends) {
    SYNCLINE_RETURN_IF_ERROR(TakeParts(call, dtype, sends_at_once).status());
    return call.all_even() ? Exchanged::kNothing : Exchanged::kNotEven;
  }
  for (const int node : OtherNodes(topology)) call.Receive(node, outputs[rank_of(node)]);
  SYNCLINE_RETURN_IF_ERROR(call.MakeProgress());
  const int own = rank_of(topology.node);
  backends::CopyElements(inputs[own], outputs[own]);
  SYNCLINE_RETURN_IF_ERROR(call.AwaitAll());
  return Exchanged::kAll;
}

// First the parts of each node's ranks go to its leader, with which it says whether all have one
// size, and what it learns comes back with the parts of the others.
absl::StatusOr<Exchanged> LatencyAllToAll(HierarchicalCall& call, absl::Span<const Tensor> outputs,
                                          absl::Span<const Tensor> inputs, size_t most) {
  const Topology& topology = call.topology();
  const DType dtype = inputs[0].dtype();
  const auto sends_at_once = [&](int node) { return SendsAtOnce(call, node, dtype, most); };
  SYNCLINE_ASSIGN_OR_RETURN(const int64_t count, EvenCountOfNode(call));
  call.SetEvenCount(count);
  Exchanged outcome = Exchanged::kNotEven;
  if (!sends_at_once(topology.node)) {
    if (call.is_leader()) {
      SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
      SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
      SYNCLINE_RETURN_IF_ERROR(TakeParts(call, dtype, sends_at_once).status());
      if (call.all_even()) outcome = Exchanged::kNothing;
    }
    SYNCLINE_RETURN_IF_ERROR(call.Broadcast(Tensor(&outcome, DType::kInt64, {1}), 0));
    return outcome;
  }
  const PackedParts own(call, dtype, count);
  own.CopyFrom(inputs);
  std::vector<PackedParts> of_ranks;  // By local rank, what each has for all ranks.
  std::vector<Tensor> gathered;
  for (size_t i = 0; i < topology.local_ranks().size() && call.is_leader(); ++i) {
    of_ranks.emplace_back(call, dtype, count);
    gathered.push_back(of_ranks.back().whole());
  }
  SYNCLINE_RETURN_IF_ERROR(call.Gather(gathered, own.whole(), 0));
  // By local rank: the outcome, and the parts of all ranks, by rank.
  const size_t part_bytes = static_cast<size_t>(count) * SizeOf(dtype);
  const auto with_outcome = [&] {
    const auto size = static_cast<int64_t>(sizeof(outcome) + topology.size() * part_bytes);
    return call.arena().Allocate(DType::kUInt8, size);
  };
  const auto part_at = [&](const Tensor& result, size_t rank) {
    return Tensor(result.data_as<char>() + sizeof(outcome) + rank * part_bytes, dtype, {count});
  };
  std::vector<Tensor> results;
  if (call.is_leader()) {
    SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
    for (int distance = 1; distance < topology.node_count(); ++distance) {
      const int node = topology.NodeAt(distance);
      for (const PackedParts& parts : of_ranks) call.Send(node, parts.OfNode(node));
    }
    SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
    SYNCLINE_ASSIGN_OR_RETURN(const auto received, TakeParts(call, dtype, sends_at_once));
    outcome = call.all_even() ? Exchanged::kAll : Exchanged::kNotEven;
    for (size_t local = 0; local < of_ranks.size(); ++local) {
      results.push_back(with_outcome());
      std::memcpy(results[local].data(), &outcome, sizeof(outcome));
      if (outcome != Exchanged::kAll) continue;
      for (int rank = 0; rank < topology.size(); ++rank) {
        const int node = topology.node_of[rank], from = topology.local_rank_of[rank];
        const auto index = static_cast<int64_t>(from * of_ranks.size() + local);
        backends::CopyElements(node == topology.node
                                   ? of_ranks[from].OfRank(topology.local_ranks()[local])
                                   : received[node].Slice(index * count, count),
                               part_at(results[local], rank));
      }
    }
  }
  const Tensor result = with_outcome();
  SYNCLINE_RETURN_IF_ERROR(call.Scatter(result, results, 0));
  std::memcpy(&outcome, result.data(), sizeof(outcome));
  for (size_t rank = 0; rank < outputs.size() && outcome == Exchanged::kAll; ++rank) {
    backends::CopyElements(part_at(result, rank), outputs[rank]);
  }
  return outcome;
}

}  // namespace syncline::hierarchical
