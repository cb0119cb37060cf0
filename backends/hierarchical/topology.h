// Which ranks of a group are on which node, and which rails connect the nodes.
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_TOPOLOGY_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_TOPOLOGY_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "syncline/check.h"
#include "syncline/tensor.h"

namespace syncline::hierarchical {

// The nodes of a group as one rank sees them. A node is a host; a local rank is the index of a rank
// among those of its node. Rail i connects one rank of each node: those with local rank i. There
// are as many rails as the smallest node has ranks, so on larger nodes some ranks are on no rail.
//
//   ranks 0 1 2 on host a, 3 4 on host b:
//     node 0: ranks 0 1 2        rail 0: ranks 0 3
//     node 1: ranks 3 4          rail 1: ranks 1 4        rank 2 is on no rail
//
// All ranks compute the same nodes and rails from the same identities. Immutable once made.
struct Topology {
  // identities[r] is equal for ranks of one node; see Peer::identity. `rank` is this process's.
  Topology(absl::Span<const std::string> identities, int rank);

  std::vector<std::vector<int>> nodes;  // Their ranks, ascending. Nodes by their lowest ranks.
  std::vector<int> node_of;             // By rank: an index in `nodes`.
  std::vector<int> local_rank_of;       // By rank.
  int node;                             // This rank's.
  int local_rank;                       // This rank's.
  int rail_count;                       // The number of ranks on the smallest node.
  int max_local_size;                   // The number of ranks on the largest node.

  int size() const { return static_cast<int>(node_of.size()); }
  int node_count() const { return static_cast<int>(nodes.size()); }

  // The node `distance` after this rank's in the ring of nodes; before it, if negative. Requires
  // -node_count() <= distance.
  int NodeAt(int distance) const {
    SYNCLINE_DCHECK(-node_count() <= distance);
    return (node + distance + node_count()) % node_count();
  }

  // Whether all nodes have equally many ranks, so that every rank is on a rail.
  bool is_even() const { return rail_count == max_local_size; }

  // The ranks of this rank's node, by local rank.
  const std::vector<int>& local_ranks() const { return nodes[node]; }

  // The ranks of this rank's rail, by node. Requires local_rank < rail_count.
  std::vector<int> rail() const;

  // Splits `tensor` over the first `rails` rails: the part of each local rank of this node, empty
  // for the others. Requires 1 <= rails <= rail_count.
  std::vector<Tensor> SplitOverRails(const Tensor& tensor, int rails) const;
};

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_TOPOLOGY_H_
