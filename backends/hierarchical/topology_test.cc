#include "backends/hierarchical/topology.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/tensor.h"

namespace syncline::hierarchical {
namespace {

using ::testing::ElementsAre;

TEST(TopologyTest, RailsConnectEqualLocalRanks) {
  const std::vector<std::string> hosts = {"b", "a", "b", "a", "b"};
  const Topology topology(hosts, 3);
  EXPECT_THAT(topology.nodes, ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3)));
  EXPECT_THAT(topology.node_of, ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(topology.local_rank_of, ElementsAre(0, 0, 1, 1, 2));
  EXPECT_EQ(topology.node, 1);
  EXPECT_EQ(topology.local_rank, 1);
  EXPECT_EQ(topology.rail_count, 2);
  EXPECT_EQ(topology.max_local_size, 3);
  EXPECT_FALSE(topology.is_even());
  EXPECT_THAT(topology.rail(), ElementsAre(2, 3));
}

TEST(TopologyTest, NodesFormARing) {
  const std::vector<std::string> hosts = {"a", "b", "c"};
  const Topology topology(hosts, 2);
  EXPECT_TRUE(topology.is_even());
  EXPECT_EQ(topology.NodeAt(0), 2);
  EXPECT_EQ(topology.NodeAt(1), 0);
  EXPECT_EQ(topology.NodeAt(-2), 0);
}

TEST(TopologyTest, OnlyRanksOnUsedRailsHaveAPart) {
  const std::vector<std::string> hosts = {"a", "a", "a", "b", "b"};
  const Topology topology(hosts, 0);
  int64_t elements[5] = {};
  const Tensor tensor(elements, DType::kInt64, {5});
  const auto numels = [](const std::vector<Tensor>& parts) {
    std::vector<int64_t> numels;
    for (const Tensor& part : parts) numels.push_back(part.numel());
    return numels;
  };
  EXPECT_THAT(numels(topology.SplitOverRails(tensor, 2)), ElementsAre(3, 2, 0));
  EXPECT_THAT(numels(topology.SplitOverRails(tensor, 1)), ElementsAre(5, 0, 0));
}

}  // namespace
}  // namespace syncline::hierarchical
