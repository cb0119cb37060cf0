#include "backends/hierarchical/node_tree.h"

#include <algorithm>

#include "syncline/check.h"

namespace syncline::hierarchical {
namespace {

int LowestBit(int position) { return position & -position; }

}  // namespace

NodeTree::NodeTree(const Topology& topology, int root_node, Shape shape)
    : topology_(topology), root_node_(root_node), shape_(shape) {
  const int nodes = topology.node_count();
  const int own = PositionOf(topology.node);
  if (!is_root()) {
    parent_ = shape == Shape::kFlat ? root_node : NodeAt(own - LowestBit(own));
  }
  if (shape == Shape::kFlat) {
    for (int position = 1; position < nodes && is_root(); ++position) {
      children_.push_back(NodeAt(position));
    }
    return;
  }
  int first_step = 1;
  while (own + first_step < nodes && (is_root() || first_step < LowestBit(own))) first_step *= 2;
  for (int step = first_step / 2; step > 0; step /= 2) children_.push_back(NodeAt(own + step));
}

int NodeTree::PositionOf(int node) const {
  const int nodes = topology_.node_count();
  return (node - root_node_ + nodes) % nodes;
}

int NodeTree::NodeAt(int position) const {
  SYNCLINE_DCHECK(position >= 0 && position < topology_.node_count());
  return (root_node_ + position) % topology_.node_count();
}

int NodeTree::SizeBelow(int node) const {
  const int position = PositionOf(node);
  if (position == 0) return topology_.node_count();
  if (shape_ == Shape::kFlat) return 1;
  return std::min(LowestBit(position), topology_.node_count() - position);
}

}  // namespace syncline::hierarchical
