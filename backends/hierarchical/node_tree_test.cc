#include "backends/hierarchical/node_tree.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::hierarchical {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Topology OfNodes(int count, int node) {
  std::vector<std::string> hosts;
  for (int i = 0; i < count; ++i) hosts.push_back(absl::StrCat("host ", i));
  return Topology(hosts, node);
}

TEST(NodeTreeTest, OfAFlatTreeAllAreChildrenOfTheRoot) {
  const Topology of_root = OfNodes(4, 2), of_other = OfNodes(4, 1);
  const NodeTree root(of_root, 2, NodeTree::Shape::kFlat);
  EXPECT_TRUE(root.is_root());
  EXPECT_THAT(root.children(), ElementsAre(3, 0, 1));
  EXPECT_EQ(root.SizeBelow(2), 4);
  EXPECT_EQ(root.SizeBelow(3), 1);
  const NodeTree other(of_other, 2, NodeTree::Shape::kFlat);
  EXPECT_EQ(other.parent(), 2);
  EXPECT_THAT(other.children(), IsEmpty());
}

TEST(NodeTreeTest, OfABinomialTreeOfSixNodes) {
  const std::vector<std::vector<int>> children = {{4, 2, 1}, {}, {3}, {}, {5}, {}};
  const std::vector<int> parents = {-1, 0, 0, 2, 0, 4}, sizes = {6, 1, 2, 1, 2, 1};
  for (int node = 0; node < 6; ++node) {
    SCOPED_TRACE(node);
    const Topology topology = OfNodes(6, node);
    const NodeTree tree(topology, 0, NodeTree::Shape::kBinomial);
    EXPECT_THAT(tree.children(), testing::ElementsAreArray(children[node]));
    EXPECT_EQ(tree.SizeBelow(node), sizes[node]);
    if (node > 0) {
      EXPECT_EQ(tree.parent(), parents[node]);
    }
  }
}

// Whatever the root and the number of nodes, those below the children of a node, and the node, have
// the positions from its own on, and each node is the child of its parent.
TEST(NodeTreeTest, TheNodesBelowAnotherLieInOnePiece) {
  for (int count = 2; count <= 20; ++count) {
    for (int root = 0; root < count; ++root) {
      for (const auto shape : {NodeTree::Shape::kFlat, NodeTree::Shape::kBinomial}) {
        std::vector<int> seen_as_child(count, 0);
        for (int node = 0; node < count; ++node) {
          SCOPED_TRACE(absl::StrCat(count, " nodes, root ", root, ", node ", node));
          const Topology topology = OfNodes(count, node);
          const NodeTree tree(topology, root, shape);
          // In the order of positions.
          std::vector<int> children(tree.children().begin(), tree.children().end());
          std::sort(children.begin(), children.end(),
                    [&](int a, int b) { return tree.PositionOf(a) < tree.PositionOf(b); });
          int below = tree.PositionOf(node) + 1;
          for (const int child : children) {
            EXPECT_EQ(tree.PositionOf(child), below);
            below += tree.SizeBelow(child);
            ++seen_as_child[child];
            const Topology of_child = OfNodes(count, child);
            EXPECT_EQ(NodeTree(of_child, root, shape).parent(), node);
          }
          EXPECT_EQ(below, tree.PositionOf(node) + tree.SizeBelow(node));
          EXPECT_EQ(tree.NodeAt(tree.PositionOf(node)), node);
        }
        for (int node = 0; node < count; ++node) EXPECT_EQ(seen_as_child[node], node != root);
      }
    }
  }
}

}  // namespace
}  // namespace syncline::hierarchical
