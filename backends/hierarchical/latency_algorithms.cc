#include "backends/hierarchical/latency_algorithms.h"

#include <cstdint>
#include <vector>

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

// For leaders: reduces `tensor`, which holds what the node's ranks have, over all nodes. Every
// leader gets every node's elements and combines them in the order of the nodes, so the results are
// bitwise equal on all nodes.
absl::Status ReduceAmongLeaders(HierarchicalCall& call, const Tensor& tensor, ReduceOp op) {
  const Topology& topology = call.topology();
  call.SendFingerprint();
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
  tensor::Reduce(tensor.dtype(), backends::PartialOp(op), tensor.data(), terms, tensor.numel());
  if (op == ReduceOp::kAvg) {
    tensor::Divide(tensor.dtype(), tensor.data(), topology.size(), tensor.numel());
  }
  return absl::OkStatus();
}

}  // namespace

// Every node's first step is one within the node, also where there is nothing to copy yet: it
// compares the calls of the node's ranks before the leader speaks for all of them.
absl::Status LatencyBroadcast(HierarchicalCall& call, const Tensor& tensor, int root) {
  const Topology& topology = call.topology();
  const int root_node = topology.node_of[root], root_local = topology.local_rank_of[root];
  const bool is_root_node = topology.node == root_node;
  // The root's node gets the tensor before it leaves the node, unless the root is the leader.
  const bool is_local_first = is_root_node && root_local != 0;
  SYNCLINE_RETURN_IF_ERROR(is_local_first ? call.Broadcast(tensor, root_local) : call.Barrier());
  if (call.is_leader()) {
    call.SendFingerprint();
    if (is_root_node) {
      call.SendToAll(tensor);
    } else {
      call.Receive(root_node, tensor);
    }
    SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
    SYNCLINE_RETURN_IF_ERROR(call.AwaitAll());
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
    call.SendFingerprint();
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

}  // namespace syncline::hierarchical
