// The trees along which rooted collectives of few bytes go from node to node.
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_NODE_TREE_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_NODE_TREE_H_

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "backends/hierarchical/topology.h"

namespace syncline::hierarchical {

// A tree of all nodes, as one node sees it. A position is the distance of a node from the root in
// the ring of nodes. The nodes below another, with it, have the positions from its own on, so what
// goes to or comes from them lies in one piece if it is in the order of positions.
//
//   kFlat: all are children of the root.
//   kBinomial, 6 nodes, by position: 0 has the children 4, 2 and 1; 4 has 5; 2 has 3.
//
// In a binomial tree the parent of a position is the position without its lowest set bit. See
// R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in
// MPICH", Int. J. of High Performance Computing Applications 19 (2005), sections 4.2 and 4.6.
//
// Immutable. Borrows the topology.
class NodeTree {
 public:
  enum class Shape { kFlat, kBinomial };

  NodeTree(const Topology& topology, int root_node, Shape shape);

  bool is_flat() const { return shape_ == Shape::kFlat; }
  bool is_root() const { return topology_.node == root_node_; }
  // A node; requires that this is not the root.
  int parent() const { return parent_; }
  // Nodes, those with the most below them first.
  absl::Span<const int> children() const { return children_; }

  // The position of `node`, and the node at a position.
  int PositionOf(int node) const;
  int NodeAt(int position) const;
  // The number of nodes below `node`, with it.
  int SizeBelow(int node) const;

 private:
  const Topology& topology_;
  const int root_node_;
  const Shape shape_;
  int parent_ = -1;
  absl::InlinedVector<int, 8> children_;
};

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_NODE_TREE_H_
