#include "backends/hierarchical/latency_algorithms.h"

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "backends/common/tensor_steps.h"
#include "core/tensor/reduce_kernels.h"
#include "syncline/status.h"

namespace syncline::hierarchical {
namespace {

int64_t TotalNumel(absl::Span<const Tensor> tensors) {
  int64_t numel = 0;
  for (const Tensor& tensor : tensors) numel += tensor.numel();
  return numel;
}

// Reduces the `terms` of all nodes, in their order, to `tensor`.
void Combine(HierarchicalCall& call, const Tensor& tensor, absl::Span<const void* const> terms,
             ReduceOp op) {
  tensor::Reduce(tensor.dtype(), backends::PartialOp(op), tensor.data(), terms, tensor.numel());
  if (op == ReduceOp::kAvg) {
    tensor::Divide(tensor.dtype(), tensor.data(), call.topology().size(), tensor.numel());
  }
}

// For leaders: reduces `tensor`, which holds what the node's ranks have, over all nodes. Every
// leader gets every node's elements and combines them in the order of the nodes, so the results are
// bitwise equal on all nodes.
absl::Status ReduceAmongLeaders(HierarchicalCall& call, const Tensor& tensor, ReduceOp op) {
  const Topology& topology = call.topology();
  SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
  std::vector<Tensor> received(topology.node_count());
  std::vector<const void*> terms(topology.node_count());
  for (int node = 0; node < topology.node_count(); ++node) {
    terms[node] = tensor.data();
    if (node == topology.node) continue;
    received[node] = call.arena().Allocate(tensor.dtype(), tensor.numel());
    terms[node] = received[node].data();
    call.Send(node, tensor);
    call.Receive(node, received[node]);
  }
  SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
  // Also of what is sent: the reduction overwrites it.
  SYNCLINE_RETURN_IF_ERROR(call.AwaitAll());
  if (tensor.numel() == 0) return absl::OkStatus();
  Combine(call, tensor, terms, op);
  return absl::OkStatus();
}

absl::InlinedVector<int, 4> OtherNodes(const Topology& topology) {
  absl::InlinedVector<int, 4> nodes;
  for (int distance = 1; distance < topology.node_count(); ++distance) {
    nodes.push_back(topology.NodeAt(distance));
  }
  return nodes;
}

// Where ranks do not meet, each being alone on its node. What comes goes to memory of the arena,
// not to the caller's, which another call's elements must not reach.

// Takes what the root sends to this node, and ends the call.
absl::Status TakeAhead(HierarchicalCall& call, const Tensor& tensor, int root_node) {
  const Tensor received = call.arena().Allocate(tensor.dtype(), tensor.numel());
  call.Receive(root_node, received);
  SYNCLINE_RETURN_IF_ERROR(call.AwaitData(root_node));
  SYNCLINE_RETURN_IF_ERROR(call.EndAhead());
  backends::CopyElements(received, tensor);
  return absl::OkStatus();
}

absl::Status BroadcastAhead(HierarchicalCall& call, const Tensor& tensor, int root_node) {
  const Topology& topology = call.topology();
  SYNCLINE_RETURN_IF_ERROR(call.BeginAhead());
  if (topology.node != root_node) return TakeAhead(call, tensor, root_node);
  SYNCLINE_RETURN_IF_ERROR(
      call.SendAhead(OtherNodes(topology), [&](int) -> const Tensor& { return tensor; }));
  return call.EndAhead();
}

// Sends `own` to the root's node, which gets those of all nodes: `parts` by node, empty elsewhere.
absl::Status GatherAhead(HierarchicalCall& call, const Tensor& own, int root_node,
                         std::vector<Tensor>& parts) {
  const Topology& topology = call.topology();
  SYNCLINE_RETURN_IF_ERROR(call.BeginAhead());
  if (topology.node != root_node) {
    SYNCLINE_RETURN_IF_ERROR(
        call.SendAhead({root_node}, [&](int) -> const Tensor& { return own; }));
    return call.EndAhead();
  }
  parts.assign(topology.node_count(), own);
  for (int node = 0; node < topology.node_count(); ++node) {
    if (node == root_node) continue;
    parts[node] = call.arena().Allocate(own.dtype(), own.numel());
    call.Receive(node, parts[node]);
  }
  SYNCLINE_RETURN_IF_ERROR(call.AwaitAllData());
  return call.EndAhead();
}

absl::Status ReduceAhead(HierarchicalCall& call, const Tensor& tensor, ReduceOp op, int root_node) {
  std::vector<Tensor> parts;
  SYNCLINE_RETURN_IF_ERROR(GatherAhead(call, tensor, root_node, parts));
  if (parts.empty() || tensor.numel() == 0) return absl::OkStatus();
  std::vector<const void*> terms;
  for (const Tensor& part : parts) terms.push_back(part.data());
  Combine(call, tensor, terms, op);
  return absl::OkStatus();
}

absl::Status ScatterAhead(HierarchicalCall& call, const Tensor& output,
                          absl::Span<const Tensor> inputs, int root) {
  const Topology& topology = call.topology();
  const int root_node = topology.node_of[root];
  SYNCLINE_RETURN_IF_ERROR(call.BeginAhead());
  if (topology.node != root_node) return TakeAhead(call, output, root_node);
  SYNCLINE_RETURN_IF_ERROR(call.SendAhead(OtherNodes(topology), [&](int node) -> const Tensor& {
    return inputs[topology.nodes[node][0]];
  }));
  SYNCLINE_RETURN_IF_ERROR(call.EndAhead());
  backends::CopyElements(inputs[root], output);
  return absl::OkStatus();
}

}  // namespace

// Every node's first step is one within the node, also where there is nothing to copy yet: it
// compares the calls of the node's ranks before the leader speaks for all of them.
absl::Status LatencyBroadcast(HierarchicalCall& call, const Tensor& tensor, int root) {
  const Topology& topology = call.topology();
  const int root_node = topology.node_of[root], root_local = topology.local_rank_of[root];
  const bool is_root_node = topology.node == root_node;
  if (call.may_go_ahead()) return BroadcastAhead(call, tensor, root_node);
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

absl::Status LatencyAllReduce(HierarchicalCall& call, const Tensor& tensor, ReduceOp op) {
  SYNCLINE_RETURN_IF_ERROR(call.Reduce(tensor, backends::PartialOp(op), 0));
  if (call.is_leader()) {
    SYNCLINE_RETURN_IF_ERROR(ReduceAmongLeaders(call, tensor, op));
  }
  return call.Broadcast(tensor, 0);
}

// An all_reduce on copies: that costs no more messages than the reduction, which all ranks must
// wait for anyway to learn of a mismatch. All ranks except the root keep their elements.
absl::Status LatencyReduce(HierarchicalCall& call, const Tensor& tensor, ReduceOp op, int root) {
  const Topology& topology = call.topology();
  if (call.may_go_ahead()) return ReduceAhead(call, tensor, op, topology.node_of[root]);
  if (topology.local_ranks()[topology.local_rank] == root) {
    return LatencyAllReduce(call, tensor, op);
  }
  const Tensor copy = call.arena().Allocate(tensor.dtype(), tensor.numel());
  backends::CopyElements(tensor, copy);
  return LatencyAllReduce(call, copy, op);
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
  if (call.is_leader()) {
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

// An all_reduce of all parts: of few bytes, messages cost more than bytes.
absl::Status LatencyReduceScatter(HierarchicalCall& call, const Tensor& output,
                                  absl::Span<const Tensor> inputs, ReduceOp op) {
  const Topology& topology = call.topology();
  const int own_rank = topology.local_ranks()[topology.local_rank];
  const Tensor all = call.arena().Allocate(output.dtype(), TotalNumel(inputs));
  int64_t offset = 0, own_offset = 0;
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    if (static_cast<int>(rank) == own_rank) own_offset = offset;
    backends::CopyElements(inputs[rank], all.Slice(offset, inputs[rank].numel()));
    offset += inputs[rank].numel();
  }
  SYNCLINE_RETURN_IF_ERROR(LatencyAllReduce(call, all, op));
  backends::CopyElements(all.Slice(own_offset, output.numel()), output);
  return absl::OkStatus();
}

absl::Status LatencyGather(HierarchicalCall& call, absl::Span<const Tensor> outputs,
                           const Tensor& input, int root) {
  const Topology& topology = call.topology();
  const int root_node = topology.node_of[root];
  if (call.may_go_ahead()) {
    std::vector<Tensor> parts;
    SYNCLINE_RETURN_IF_ERROR(GatherAhead(call, input, root_node, parts));
    for (size_t node = 0; node < parts.size(); ++node) {
      backends::CopyElements(parts[node], outputs[topology.nodes[node][0]]);
    }
    return absl::OkStatus();
  }
  SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
  if (topology.node != root_node) {
    call.Send(root_node, input);
    SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
    return call.AwaitAll();
  }
  // Not to the outputs, which another call's elements must not reach; so in the next ones.
  std::vector<Tensor> received(topology.node_count());
  for (int node = 0; node < topology.node_count(); ++node) {
    if (node == root_node) continue;
    received[node] = call.arena().Allocate(input.dtype(), input.numel());
    call.Receive(node, received[node]);
  }
  SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
  SYNCLINE_RETURN_IF_ERROR(call.AwaitAll());
  received[root_node] = input;
  for (int node = 0; node < topology.node_count(); ++node) {
    backends::CopyElements(received[node], outputs[topology.nodes[node][0]]);
  }
  return absl::OkStatus();
}

absl::Status LatencyScatter(HierarchicalCall& call, const Tensor& output,
                            absl::Span<const Tensor> inputs, int root) {
  const Topology& topology = call.topology();
  const int root_node = topology.node_of[root];
  if (call.may_go_ahead()) return ScatterAhead(call, output, inputs, root);
  SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
  Tensor own;
  if (topology.node == root_node) {
    for (int distance = 1; distance < topology.node_count(); ++distance) {
      const int node = topology.NodeAt(distance);
      call.Send(node, inputs[topology.nodes[node][0]]);
    }
    own = inputs[root];
  } else {
    own = call.arena().Allocate(output.dtype(), output.numel());
    call.Receive(root_node, own);
  }
  SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
  SYNCLINE_RETURN_IF_ERROR(call.AwaitAll());
  backends::CopyElements(own, output);
  return absl::OkStatus();
}

absl::StatusOr<bool> LatencyAllToAll(HierarchicalCall& call, absl::Span<const Tensor> outputs,
                                     absl::Span<const Tensor> inputs, size_t most) {
  const Topology& topology = call.topology();
  const DType dtype = inputs[0].dtype();
  const auto most_of_part =
      static_cast<int64_t>(most / SizeOf(dtype) / static_cast<size_t>(topology.node_count()));
  // A rank whose own parts have one size sends them behind its record, which tells that size.
  const auto sends_at_once = [&](int node) {
    return call.even_count(node) >= 0 && call.even_count(node) <= most_of_part;
  };
  SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
  if (sends_at_once(topology.node)) {
    for (int distance = 1; distance < topology.node_count(); ++distance) {
      const int node = topology.NodeAt(distance);
      call.Send(node, inputs[topology.nodes[node][0]]);
    }
  }
  SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
  std::vector<Tensor> received(topology.node_count());
  for (int node = 0; node < topology.node_count(); ++node) {
    if (node == topology.node || !sends_at_once(node)) continue;
    received[node] = call.arena().Allocate(dtype, call.even_count(node));
    call.Receive(node, received[node]);
  }
  SYNCLINE_RETURN_IF_ERROR(call.AwaitAll());
  if (!call.all_even() || !sends_at_once(topology.node)) return false;
  received[topology.node] = inputs[topology.nodes[topology.node][0]];
  for (int node = 0; node < topology.node_count(); ++node) {
    backends::CopyElements(received[node], outputs[topology.nodes[node][0]]);
  }
  return true;
}

}  // namespace syncline::hierarchical
