#include "backends/hierarchical/rooted_algorithms.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "backends/common/tensor_steps.h"
#include "backends/hierarchical/local_steps.h"
#include "backends/hierarchical/node_tree.h"
#include "backends/hierarchical/thresholds.h"
#include "syncline/status.h"

namespace syncline::hierarchical {
namespace {

// The tree of a call of parts, of which a child of the root passes on so many bytes if it is
// binomial, as it is from `min_nodes` on.
NodeTree TreeFor(const HierarchicalCall& call, int root_node, size_t bytes_to_relay,
                 int min_nodes) {
  const bool is_binomial = call.topology().node_count() >= min_nodes && bytes_to_relay > 0 &&
                           bytes_to_relay <= kTreeMaxBytes;
  return {call.topology(), root_node,
          is_binomial ? NodeTree::Shape::kBinomial : NodeTree::Shape::kFlat};
}

// For leaders that take only: what the parent sends to this node.
absl::StatusOr<Tensor> TakeFromParent(HierarchicalCall& call, const NodeTree& tree, DType dtype,
                                      int64_t count) {
  const Tensor received = call.arena().Allocate(dtype, count);
  SYNCLINE_RETURN_IF_ERROR(call.BeginAhead());
  call.Receive(tree.parent(), received);
  SYNCLINE_RETURN_IF_ERROR(call.AwaitData({tree.parent()}));
  return received;
}

// What the nodes give in a rooted call, in the order of the positions in its tree, from this node's
// on as far as there are nodes below it.
struct PartsBelow {
  Tensor all;
  absl::InlinedVector<int64_t, 8> offsets;  // By distance from this node's position; and the end.

  Tensor At(int distance, int count = 1) const {
    return all.Slice(offsets[distance], offsets[distance + count] - offsets[distance]);
  }
};

PartsBelow AllocateParts(HierarchicalCall& call, const NodeTree& tree, DType dtype,
                         absl::FunctionRef<int64_t(int node)> count_of) {
  const int own = call.topology().node;
  PartsBelow parts;
  parts.offsets.push_back(0);
  for (int distance = 0; distance < tree.SizeBelow(own); ++distance) {
    const int node = tree.NodeAt(tree.PositionOf(own) + distance);
    parts.offsets.push_back(parts.offsets.back() + count_of(node));
  }
  parts.all = call.arena().Allocate(dtype, parts.offsets.back());
  return parts;
}

// Each node's first step is `collect`, within it, after which its leader has what the node gives:
// `own`. The root gets those of all nodes: `parts`, empty elsewhere.
absl::Status CollectAhead(HierarchicalCall& call, const NodeTree& tree, const Tensor& own,
                          absl::FunctionRef<int64_t(int node)> count_of,
                          absl::FunctionRef<absl::Status()> collect, PartsBelow& parts) {
  const int own_node = call.topology().node;
  const auto give = [&](const Tensor& given) -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(
        call.SendAhead({tree.parent()}, [&](int) -> const Tensor& { return given; }));
    return call.EndAhead();
  };
  if (!call.is_leader()) return collect();
  if (tree.children().empty()) {
    SYNCLINE_RETURN_IF_ERROR(collect());
    SYNCLINE_RETURN_IF_ERROR(call.BeginAhead());
    return give(own);
  }
  SYNCLINE_RETURN_IF_ERROR(call.BeginAhead());
  PartsBelow below = AllocateParts(call, tree, own.dtype(), count_of);
  for (const int child : tree.children()) {
    call.Receive(
        child, below.At(tree.PositionOf(child) - tree.PositionOf(own_node), tree.SizeBelow(child)));
  }
  SYNCLINE_RETURN_IF_ERROR(collect());
  backends::CopyElements(own, below.At(0));
  SYNCLINE_RETURN_IF_ERROR(call.AwaitData(tree.children()));
  if (!tree.is_root()) return give(below.all);
  parts = std::move(below);
  return call.EndAhead();
}

// The number of elements of a node's ranks together, each of which has `numel`.
int64_t CountOfNode(const Topology& topology, int node, int64_t numel) {
  return numel * static_cast<int64_t>(topology.nodes[node].size());
}

}  // namespace

// A leader's tensor is not written if it hears in this call that its node has failed.
absl::Status BroadcastAhead(HierarchicalCall& call, const Tensor& tensor, int root_node) {
  if (!call.is_leader()) return call.Broadcast(tensor, 0);
  // However much it is: what a node passes on another need not.
  const bool is_binomial = call.topology().node_count() >= kMinNodesToRelay && tensor.nbytes() > 0;
  const NodeTree tree(call.topology(), root_node,
                      is_binomial ? NodeTree::Shape::kBinomial : NodeTree::Shape::kFlat);
  Tensor sent = tensor;
  if (tree.is_root()) {
    SYNCLINE_RETURN_IF_ERROR(call.BeginAhead());
  } else {
    SYNCLINE_ASSIGN_OR_RETURN(sent, TakeFromParent(call, tree, tensor.dtype(), tensor.numel()));
  }
  SYNCLINE_RETURN_IF_ERROR(
      call.SendAhead(tree.children(), [&](int) -> const Tensor& { return sent; }));
  SYNCLINE_RETURN_IF_ERROR(call.EndAhead());
  SYNCLINE_RETURN_IF_ERROR(call.Broadcast(sent, 0));
  if (!tree.is_root()) backends::CopyElements(sent, tensor);
  return absl::OkStatus();
}

// Ranks that have given their elements to their leader keep them, as the root alone may write its
// tensor.
absl::Status ReduceAhead(HierarchicalCall& call, const Tensor& tensor, ReduceOp op, int root_node) {
  const Topology& topology = call.topology();
  const bool has_sum_of_node = call.is_leader() && call.has_neighbours();
  const Tensor sum = has_sum_of_node ? CopyOf(call, tensor) : tensor;
  const NodeTree tree =
      TreeFor(call, root_node, tensor.nbytes() * static_cast<size_t>(topology.node_count()) / 2,
              kMinNodesToCollect);
  PartsBelow parts;
  SYNCLINE_RETURN_IF_ERROR(CollectAhead(
      call, tree, sum, [&](int) { return tensor.numel(); },
      [&] { return call.Reduce(sum, backends::PartialOp(op), 0); }, parts));
  if (parts.offsets.empty() || tensor.numel() == 0) return absl::OkStatus();
  absl::InlinedVector<const void*, 8> terms;
  for (int node = 0; node < topology.node_count(); ++node) {
    terms.push_back(parts.At(tree.PositionOf(node)).data());
  }
  Combine(call, tensor, terms, op);
  return absl::OkStatus();
}

absl::Status GatherAhead(HierarchicalCall& call, absl::Span<const Tensor> outputs,
                         const Tensor& input, int root_node) {
  const Topology& topology = call.topology();
  const auto count_of = [&](int node) { return CountOfNode(topology, node, input.numel()); };
  Tensor own = input;
  std::vector<Tensor> of_ranks;
  if (call.is_leader() && call.has_neighbours()) {
    own = call.arena().Allocate(input.dtype(), count_of(topology.node));
    of_ranks = own.SplitEvenly(static_cast<int>(topology.local_ranks().size()));
  }
  const auto collect = [&] {
    return call.has_neighbours() ? call.Gather(of_ranks, input, 0) : absl::OkStatus();
  };
  const NodeTree tree =
      TreeFor(call, root_node, input.nbytes() * static_cast<size_t>(topology.size()) / 2,
              kMinNodesToCollect);
  PartsBelow parts;
  SYNCLINE_RETURN_IF_ERROR(CollectAhead(call, tree, own, count_of, collect, parts));
  for (int node = 0; node < topology.node_count() && !parts.offsets.empty(); ++node) {
    const Tensor part = parts.At(tree.PositionOf(node));
    const std::vector<int>& ranks = topology.nodes[node];
    for (size_t i = 0; i < ranks.size(); ++i) {
      backends::CopyElements(part.Slice(i * input.numel(), input.numel()), outputs[ranks[i]]);
    }
  }
  return absl::OkStatus();
}

// The root's parts lie where the caller has them. In a flat tree whose nodes have one rank each
// they go from there; else they are copied first, so that those of one child lie in one piece.
absl::Status ScatterAhead(HierarchicalCall& call, const Tensor& output,
                          absl::Span<const Tensor> inputs, int root_node) {
  const Topology& topology = call.topology();
  if (!call.is_leader()) return call.Scatter(output, {}, 0);
  const NodeTree tree =
      TreeFor(call, root_node, output.nbytes() * static_cast<size_t>(topology.size()) / 2,
              kMinNodesToRelay);
  const auto count_of = [&](int node) { return CountOfNode(topology, node, output.numel()); };
  const int own_position = tree.PositionOf(topology.node);
  PartsBelow parts;
  std::vector<Tensor> for_child(topology.node_count());  // By node.
  std::vector<Tensor> own;                               // By local rank.
  if (tree.is_root()) {
    const bool are_alone = tree.is_flat() && topology.max_local_size == 1;
    if (!are_alone) {
      parts = AllocateParts(call, tree, output.dtype(), count_of);
      for (int node = 0; node < topology.node_count(); ++node) {
        const Tensor part = parts.At(tree.PositionOf(node));
        const std::vector<int>& ranks = topology.nodes[node];
        for (size_t i = 0; i < ranks.size(); ++i) {
          backends::CopyElements(inputs[ranks[i]], part.Slice(i * output.numel(), output.numel()));
        }
      }
    }
    for (const int child : tree.children()) {
      for_child[child] = are_alone ? inputs[topology.nodes[child][0]]
                                   : parts.At(tree.PositionOf(child), tree.SizeBelow(child));
    }
    for (const int rank : topology.local_ranks()) own.push_back(inputs[rank]);
    SYNCLINE_RETURN_IF_ERROR(call.BeginAhead());
  } else {
    parts = AllocateParts(call, tree, output.dtype(), count_of);
    SYNCLINE_RETURN_IF_ERROR(call.BeginAhead());
    call.Receive(tree.parent(), parts.all);
    SYNCLINE_RETURN_IF_ERROR(call.AwaitData({tree.parent()}));
    for (const int child : tree.children()) {
      for_child[child] = parts.At(tree.PositionOf(child) - own_position, tree.SizeBelow(child));
    }
    own = parts.At(0).SplitEvenly(static_cast<int>(topology.local_ranks().size()));
  }
  SYNCLINE_RETURN_IF_ERROR(
      call.SendAhead(tree.children(), [&](int node) -> const Tensor& { return for_child[node]; }));
  SYNCLINE_RETURN_IF_ERROR(call.EndAhead());
  return call.Scatter(output, own, 0);
}

}  // namespace syncline::hierarchical
