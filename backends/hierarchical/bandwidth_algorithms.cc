#include "backends/hierarchical/bandwidth_algorithms.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/common/tensor_steps.h"
#include "backends/hierarchical/local_steps.h"
#include "backends/hierarchical/thresholds.h"
#include "syncline/check.h"
#include "syncline/status.h"

namespace syncline::hierarchical {
namespace {

// Combines `tensor`, this node's elements, in place with those of the other nodes; `received` has
// them by node.
void CombineNodes(const HierarchicalCall& call, const Tensor& tensor,
                  absl::Span<const Tensor> received, ReduceOp op) {
  if (tensor.numel() == 0) return;
  std::vector<const void*> terms;
  for (const Tensor& term : received) terms.push_back(term.data());
  terms[call.topology().node] = tensor.data();
  Combine(call, tensor, terms, op);
}

// Cuts tensors of at most `numel` elements into chunks of `bytes`.
struct Chunks {
  Chunks(int64_t numel, DType dtype, size_t bytes)
      : each(std::max<int64_t>(bytes / SizeOf(dtype), 1)), count((numel + each - 1) / each) {}

  // The k-th chunk of `tensor`; empty if the tensor ends before it.
  Tensor Of(const Tensor& tensor, int64_t k) const {
    const int64_t begin = std::min(k * each, tensor.numel());
    return tensor.Slice(begin, std::min(each, tensor.numel() - begin));
  }

  int64_t each;  // Elements.
  int64_t count;
};

// Calls begin(k) and end(k) for every chunk k. begin(k) comes before end(k - 1), so that shared
// memory works on chunk k while chunk k - 1 is on its way between the nodes. At most two chunks are
// under way, so chunk k may use the state of chunk k - 2: that is what `k % 2` means below.
template <typename Begin, typename End>
absl::Status RunPipelined(const Chunks& chunks, const Begin& begin, const End& end) {
  for (int64_t k = 0; k <= chunks.count; ++k) {
    if (k < chunks.count) SYNCLINE_RETURN_IF_ERROR(begin(k));
    if (k > 0) SYNCLINE_RETURN_IF_ERROR(end(k - 1));
  }
  return absl::OkStatus();
}

// The parts of a chunk, by local rank. A short chunk uses fewer rails.
std::vector<Tensor> SplitOverRails(const HierarchicalCall& call, const Tensor& chunk) {
  const size_t rail_count = call.topology().rail_count;
  return call.topology().SplitOverRails(
      chunk,
      static_cast<int>(std::clamp<size_t>(chunk.nbytes() / kMinRailPartBytes, 1, rail_count)));
}

// all_reduce, or reduce if there is a `root_node`. Of each chunk:
//   1. within the node, a reduce_scatter gives each rank on a rail one part, reduced over the node;
//   2. between the nodes, each rail combines its part over all nodes;
//   3. within the node, the caller's `gather` brings the parts to the ranks that need them.
//
// In step 2, two nodes send each other the whole part, and each that needs the result combines
// both: that takes one message. More than two nodes, and two with many elements, split the part
// into sections, one for each node. Each node combines its section and sends it to those that need
// it: that takes two messages, but each byte crosses only twice, and is combined once.
class ChunkedReduction {
 public:
  ChunkedReduction(HierarchicalCall& call, const Tensor& tensor, ReduceOp op, int root_node)
      : call_(call),
        topology_(call.topology()),
        tensor_(tensor),
        op_(op),
        root_node_(root_node),
        is_pair_(topology_.node_count() == 2 &&
                 (root_node >= 0 || tensor.nbytes() <= kPairMaxBytes)),
        chunks_(tensor.numel(), tensor.dtype(), kChunkBytes) {
    const int64_t section = is_pair_ ? MaxPartNumel() : MaxPartNumel() / topology_.node_count() + 1;
    for (ChunkState& state : states_) {
      state.received.resize(topology_.node_count());
      for (int node = 0; node < topology_.node_count(); ++node) {
        if (node != topology_.node && call_.is_on_rail()) state.received[node] = Allocate(section);
      }
    }
  }

  // Whether this rank's tensor may be overwritten.
  enum class Elements { kMayChange, kStay };

  // gather(parts, own) is step 3: this rank has `own`, and parts[r] is where that of local rank r
  // belongs in the tensor.
  template <typename Gather>
  absl::Status Run(Elements elements, const Gather& gather) {
    if (elements == Elements::kStay) {
      for (ChunkState& state : states_) state.copy = Allocate(MaxPartNumel());
    }
    return RunPipelined(
        chunks_, [&](int64_t k) { return Begin(k, elements); },
        [&](int64_t k) -> absl::Status {
          ChunkState& state = states_[k % 2];
          if (call_.is_on_rail()) SYNCLINE_RETURN_IF_ERROR(Finish(k, state));
          return gather(state.parts, state.own);
        });
  }

 private:
  struct ChunkState {
    std::vector<Tensor> parts;     // By local rank.
    Tensor own;                    // This rank's part, or its copy.
    Tensor copy;                   // Memory for the part of a rank whose elements stay.
    std::vector<Tensor> sections;  // Of `own`, by node; of a pair, `own` as a whole.
    std::vector<Tensor> received;  // By node: its elements of the section that this node combines.
    HierarchicalCall::Progress progress;
  };

  bool NeedsResult(int node) const { return root_node_ < 0 || node == root_node_; }
  bool Combines(int node, size_t section) const {
    return is_pair_ ? NeedsResult(node) : static_cast<int>(section) == node;
  }
  // The most elements that a part may have. If a chunk is not split over all rails, its parts are
  // shorter than twice kMinRailPartBytes.
  int64_t MaxPartNumel() const {
    const int64_t least = 2 * kMinRailPartBytes / SizeOf(tensor_.dtype());
    return std::min(std::max(chunks_.each / topology_.rail_count, least) + 1, chunks_.each);
  }
  Tensor Allocate(int64_t count) { return call_.arena().Allocate(tensor_.dtype(), count); }

  // Step 1, and the first message of step 2.
  absl::Status Begin(int64_t k, Elements elements) {
    ChunkState& state = states_[k % 2];
    state.parts = SplitOverRails(call_, chunks_.Of(tensor_, k));
    state.own = state.parts[topology_.local_rank];
    if (elements == Elements::kStay) state.own = state.copy.Slice(0, state.own.numel());
    SYNCLINE_RETURN_IF_ERROR(call_.ReduceScatter(state.own, state.parts, backends::PartialOp(op_)));
    if (!call_.is_on_rail()) return absl::OkStatus();
    if (k == 0) SYNCLINE_RETURN_IF_ERROR(call_.SendFingerprint());
    state.sections =
        is_pair_ ? std::vector<Tensor>{state.own} : state.own.SplitEvenly(topology_.node_count());
    for (int node = 0; node < topology_.node_count(); ++node) {
      if (node == topology_.node) continue;
      for (size_t section = 0; section < state.sections.size(); ++section) {
        const Tensor& elements_of_section = state.sections[section];
        if (Combines(node, section)) call_.Send(node, elements_of_section);
        if (!Combines(topology_.node, section)) continue;
        call_.Receive(node, state.received[node].Slice(0, elements_of_section.numel()));
      }
    }
    state.progress = call_.progress();
    return call_.MakeProgress();
  }

  // The rest of step 2.
  absl::Status Finish(int64_t k, ChunkState& state) {
    if (k == 0) SYNCLINE_RETURN_IF_ERROR(call_.CheckFingerprints());
    SYNCLINE_RETURN_IF_ERROR(call_.Await(state.progress));
    const size_t own = is_pair_ ? 0 : topology_.node;
    if (Combines(topology_.node, own)) {
      CombineNodes(call_, state.sections[own], state.received, op_);
    }
    if (is_pair_) return absl::OkStatus();
    for (int node = 0; node < topology_.node_count(); ++node) {
      if (node == topology_.node) continue;
      if (NeedsResult(node)) call_.Send(node, state.sections[own]);
      if (NeedsResult(topology_.node)) call_.Receive(node, state.sections[node]);
    }
    // This also waits for the first message of the next chunk, which is in the same streams.
    return call_.Await(call_.progress());
  }

  HierarchicalCall& call_;
  const Topology& topology_;
  const Tensor& tensor_;
  const ReduceOp op_;
  const int root_node_;  // Or -1: all nodes need the result.
  const bool is_pair_;   // Whether two nodes exchange whole parts.
  const Chunks chunks_;
  ChunkState states_[2];
};

}  // namespace

absl::Status BandwidthAllReduce(HierarchicalCall& call, const Tensor& tensor, ReduceOp op) {
  return ChunkedReduction(call, tensor, op, -1)
      .Run(ChunkedReduction::Elements::kMayChange,
           [&](const auto& parts, const Tensor& own) { return call.AllGather(parts, own); });
}

absl::Status BandwidthReduce(HierarchicalCall& call, const Tensor& tensor, ReduceOp op, int root) {
  const Topology& topology = call.topology();
  const int root_node = topology.node_of[root], root_local = topology.local_rank_of[root];
  const bool is_root_node = topology.node == root_node;
  const bool is_root = is_root_node && topology.local_rank == root_local;
  const auto elements =
      is_root ? ChunkedReduction::Elements::kMayChange : ChunkedReduction::Elements::kStay;
  SYNCLINE_RETURN_IF_ERROR(ChunkedReduction(call, tensor, op, root_node)
                               .Run(elements, [&](const auto& parts, const Tensor& own) {
                                 return is_root_node ? call.GatherUneven(parts, own, root_local)
                                                     : absl::OkStatus();
                               }));
  // Ranks on no rail have not heard yet whether the nodes made the same call. A barrier within the
  // node, which their neighbours on the rails reach only if so, tells them.
  return topology.is_even() ? absl::OkStatus() : call.Barrier();
}

namespace {

// A chunk leaves each node of the ring once it has come there as a whole, so the last node waits as
// long as a chunk takes over all hops. Chunks that are a quarter of the tensor for each hop after
// the first leave that wait a quarter of what the tensor takes over one hop.
size_t BroadcastChunkBytes(const Topology& topology, const Tensor& tensor) {
  const size_t later_hops = static_cast<size_t>(topology.node_count()) - 2;
  if (later_hops == 0) return kChunkBytes;
  return std::clamp(tensor.nbytes() / (4 * later_hops), kMinBroadcastChunkBytes, kChunkBytes);
}

}  // namespace

// A pipeline over the ring of nodes, on each rail: every node sends each byte once. The ranks of
// the root's node get the chunk through shared memory before it leaves, those of other nodes after
// it has come.
absl::Status BandwidthBroadcast(HierarchicalCall& call, const Tensor& tensor, int root) {
  const Topology& topology = call.topology();
  const int root_node = topology.node_of[root];
  const bool is_root_node = topology.node == root_node;
  const bool is_last_node = topology.NodeAt(1) == root_node;
  const Chunks chunks(tensor.numel(), tensor.dtype(), BroadcastChunkBytes(topology, tensor));
  std::vector<Tensor> parts[2];
  HierarchicalCall::Progress progress[2];
  const auto begin = [&](int64_t k) -> absl::Status {
    const Tensor chunk = chunks.Of(tensor, k);
    parts[k % 2] = SplitOverRails(call, chunk);
    if (is_root_node) {
      SYNCLINE_RETURN_IF_ERROR(call.Broadcast(chunk, topology.local_rank_of[root]));
    } else if (k == 0) {
      // Only to compare the calls of the node's ranks before one speaks for all of them.
      SYNCLINE_RETURN_IF_ERROR(call.Barrier());
    }
    if (!call.is_on_rail()) return absl::OkStatus();
    if (k == 0) SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
    const Tensor& own = parts[k % 2][topology.local_rank];
    if (is_root_node) {
      call.Send(topology.NodeAt(1), own);
    } else {
      call.Receive(topology.NodeAt(-1), own);
    }
    progress[k % 2] = call.progress();
    return call.MakeProgress();
  };
  const auto end = [&](int64_t k) -> absl::Status {
    const Tensor& own = parts[k % 2][topology.local_rank];
    if (call.is_on_rail()) {
      if (k == 0) SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
      SYNCLINE_RETURN_IF_ERROR(call.Await(progress[k % 2]));
      if (!is_root_node && !is_last_node) {
        call.Send(topology.NodeAt(1), own);
        SYNCLINE_RETURN_IF_ERROR(call.MakeProgress());
      }
    }
    return is_root_node ? absl::OkStatus() : call.AllGather(parts[k % 2], own);
  };
  SYNCLINE_RETURN_IF_ERROR(RunPipelined(chunks, begin, end));
  if (call.is_on_rail()) SYNCLINE_RETURN_IF_ERROR(call.AwaitAll());
  // Ranks on no rail have not heard yet whether the nodes made the same call; those of other nodes
  // have, in the all_gather.
  return topology.is_even() || !is_root_node ? absl::OkStatus() : call.Barrier();
}

// The rank on rail i of a node carries the parts of its local ranks i, i + rail_count, ... What a
// rank has received from a rail, it shares with the ranks of its node.
absl::Status BandwidthAllGather(HierarchicalCall& call, absl::Span<const Tensor> outputs,
                                const Tensor& input) {
  const Topology& topology = call.topology();
  const size_t own_rail = topology.local_rank, rail_count = topology.rail_count;
  int64_t longest = 0;
  for (const Tensor& output : outputs) longest = std::max(longest, output.numel());
  const Chunks chunks(longest, input.dtype(), kChunkBytes / topology.max_local_size);
  HierarchicalCall::Progress progress[2];
  const auto begin = [&](int64_t k) -> absl::Status {
    std::vector<Tensor> parts;
    for (int rank : topology.local_ranks()) parts.push_back(chunks.Of(outputs[rank], k));
    SYNCLINE_RETURN_IF_ERROR(call.AllGather(parts, chunks.Of(input, k)));
    if (!call.is_on_rail()) return absl::OkStatus();
    if (k == 0) SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
    // Each node begins with its neighbours, so that no node is sent to by all at once.
    for (int distance = 1; distance < topology.node_count(); ++distance) {
      const int from = topology.NodeAt(-distance), to = topology.NodeAt(distance);
      const std::vector<int>& senders = topology.nodes[from];
      for (size_t local = own_rail; local < senders.size(); local += rail_count) {
        call.Receive(from, chunks.Of(outputs[senders[local]], k));
      }
      for (size_t local = own_rail; local < parts.size(); local += rail_count) {
        call.Send(to, parts[local]);
      }
    }
    progress[k % 2] = call.progress();
    return call.MakeProgress();
  };
  const auto end = [&](int64_t k) -> absl::Status {
    if (call.is_on_rail()) {
      if (k == 0) SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
      SYNCLINE_RETURN_IF_ERROR(call.Await(progress[k % 2]));
    }
    // One all_gather for as many ranks of another node as there are rails: local rank i gives what
    // came on rail i, the ranks on no rail give nothing.
    for (int distance = 1; distance < topology.node_count(); ++distance) {
      const std::vector<int>& ranks = topology.nodes[topology.NodeAt(distance)];
      for (size_t first = 0; first < ranks.size(); first += rail_count) {
        std::vector<Tensor> parts(topology.local_ranks().size(), input.Slice(0, 0));
        const size_t count = std::min(rail_count, ranks.size() - first);
        for (size_t i = 0; i < count; ++i) parts[i] = chunks.Of(outputs[ranks[first + i]], k);
        SYNCLINE_RETURN_IF_ERROR(call.AllGather(parts, parts[own_rail]));
      }
    }
    return absl::OkStatus();
  };
  return RunPipelined(chunks, begin, end);
}

// For each node, the ranks of this node reduce what they have for its ranks: local rank i gets the
// sum for local rank i there, and sends it on rail i. Each rank combines what comes from all nodes.
absl::Status BandwidthReduceScatter(HierarchicalCall& call, const Tensor& output,
                                    absl::Span<const Tensor> inputs, ReduceOp op) {
  const Topology& topology = call.topology();
  SYNCLINE_DCHECK(topology.is_even());
  int64_t longest = 0;
  for (const Tensor& input : inputs) longest = std::max(longest, input.numel());
  const Chunks chunks(longest, output.dtype(), kChunkBytes / inputs.size());
  // By node: this node's sum for a rank there, and that node's sum for this rank.
  std::vector<Tensor> partial[2], received[2];
  for (int i = 0; i < 2 * topology.node_count(); ++i) {
    const int64_t numel = std::min(chunks.each, longest);
    partial[i % 2].push_back(call.arena().Allocate(output.dtype(), numel));
    received[i % 2].push_back(call.arena().Allocate(output.dtype(), numel));
  }
  HierarchicalCall::Progress progress[2];
  const auto begin = [&](int64_t k) -> absl::Status {
    for (int node = 0; node < topology.node_count(); ++node) {
      std::vector<Tensor> parts;
      for (int rank : topology.nodes[node]) parts.push_back(chunks.Of(inputs[rank], k));
      const Tensor sum = node == topology.node
                             ? chunks.Of(output, k)
                             : partial[k % 2][node].Slice(0, parts[topology.local_rank].numel());
      SYNCLINE_RETURN_IF_ERROR(call.ReduceScatter(sum, parts, backends::PartialOp(op)));
      if (k == 0 && node == 0) SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
      if (node == topology.node) continue;
      call.Send(node, sum);
      call.Receive(node, received[k % 2][node].Slice(0, chunks.Of(output, k).numel()));
    }
    progress[k % 2] = call.progress();
    return call.MakeProgress();
  };
  const auto end = [&](int64_t k) -> absl::Status {
    if (k == 0) SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
    SYNCLINE_RETURN_IF_ERROR(call.Await(progress[k % 2]));
    CombineNodes(call, chunks.Of(output, k), received[k % 2], op);
    return absl::OkStatus();
  };
  return RunPipelined(chunks, begin, end);
}

absl::Status BandwidthGather(HierarchicalCall& call, absl::Span<const Tensor> outputs,
                             const Tensor& input, int root) {
  const Topology& topology = call.topology();
  const int root_node = topology.node_of[root];
  SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
  if (topology.node != root_node) call.Send(root_node, input);
  SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
  if (topology.node == root_node) {
    for (int distance = 1; distance < topology.node_count(); ++distance) {
      const int node = topology.NodeAt(distance);
      call.Receive(node, outputs[topology.nodes[node][0]]);
    }
    SYNCLINE_RETURN_IF_ERROR(call.MakeProgress());
    backends::CopyElements(input, outputs[root]);
  }
  return call.AwaitAll();
}

absl::Status BandwidthScatter(HierarchicalCall& call, const Tensor& output,
                              absl::Span<const Tensor> inputs, int root) {
  const Topology& topology = call.topology();
  const int root_node = topology.node_of[root];
  SYNCLINE_RETURN_IF_ERROR(call.SendFingerprint());
  if (topology.node == root_node) {
    for (int distance = 1; distance < topology.node_count(); ++distance) {
      const int node = topology.NodeAt(distance);
      call.Send(node, inputs[topology.nodes[node][0]]);
    }
  }
  SYNCLINE_RETURN_IF_ERROR(call.CheckFingerprints());
  if (topology.node == root_node) {
    backends::CopyElements(inputs[root], output);
  } else {
    call.Receive(root_node, output);
  }
  return call.AwaitAll();
}

namespace {

// The tensors by rank, empty for the ranks of this node, whose data tcp does not move.
std::vector<Tensor> OfOtherNodes(const Topology& topology, absl::Span<const Tensor> tensors) {
  std::vector<Tensor> others(tensors.begin(), tensors.end());
  for (const int rank : tensors.empty() ? std::vector<int>() : topology.local_ranks()) {
    others[rank] = others[rank].Slice(0, 0);
  }
  return others;
}

// The tensors by local rank; none if there are none.
std::vector<Tensor> OfThisNode(const Topology& topology, absl::Span<const Tensor> tensors) {
  std::vector<Tensor> own;
  for (const int rank : tensors.empty() ? std::vector<int>() : topology.local_ranks()) {
    own.push_back(tensors[rank]);
  }
  return own;
}

}  // namespace

absl::Status PairwiseGather(HierarchicalCall& call, backends::MessageCollectives& between,
                            absl::Span<const Tensor> outputs, const Tensor& input, int root) {
  const Topology& topology = call.topology();
  if (topology.node_of[root] != topology.node) return between.Gather({}, input, root);
  SYNCLINE_RETURN_IF_ERROR(
      call.Gather(OfThisNode(topology, outputs), input, topology.local_rank_of[root]));
  return between.Gather(OfOtherNodes(topology, outputs), input.Slice(0, 0), root);
}

absl::Status PairwiseScatter(HierarchicalCall& call, backends::MessageCollectives& between,
                             const Tensor& output, absl::Span<const Tensor> inputs, int root) {
  const Topology& topology = call.topology();
  if (topology.node_of[root] != topology.node) return between.Scatter(output, {}, root);
  SYNCLINE_RETURN_IF_ERROR(
      between.Scatter(output.Slice(0, 0), OfOtherNodes(topology, inputs), root));
  return call.Scatter(output, OfThisNode(topology, inputs), topology.local_rank_of[root]);
}

absl::Status PairwiseAllToAll(HierarchicalCall& call, backends::MessageCollectives& between,
                              absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs) {
  const Topology& topology = call.topology();
  SYNCLINE_RETURN_IF_ERROR(
      call.AllToAll(OfThisNode(topology, outputs), OfThisNode(topology, inputs)));
  return between.AllToAll(OfOtherNodes(topology, outputs), OfOtherNodes(topology, inputs));
}

}  // namespace syncline::hierarchical
