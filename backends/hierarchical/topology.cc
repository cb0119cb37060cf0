#include "backends/hierarchical/topology.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include "backends/common/tensor_steps.h"

namespace syncline::hierarchical {

Topology::Topology(absl::Span<const std::string> identities, int rank) {
  std::map<std::string, int> index;
  for (size_t r = 0; r < identities.size(); ++r) {
    const auto [found, is_new] = index.try_emplace(identities[r], static_cast<int>(nodes.size()));
    if (is_new) nodes.emplace_back();
    std::vector<int>& ranks = nodes[found->second];
    node_of.push_back(found->second);
    local_rank_of.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(r));
  }
  node = node_of[rank];
  local_rank = local_rank_of[rank];
  const auto [smallest, largest] = std::minmax_element(
      nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  rail_count = static_cast<int>(smallest->size());
  max_local_size = static_cast<int>(largest->size());
}

std::vector<int> Topology::rail() const {
  SYNCLINE_DCHECK(local_rank < rail_count);
  std::vector<int> ranks;
  for (const std::vector<int>& members : nodes) ranks.push_back(members[local_rank]);
  return ranks;
}

std::vector<Tensor> Topology::SplitOverRails(const Tensor& tensor, int rails) const {
  SYNCLINE_DCHECK(rails >= 1 && rails <= rail_count);
  std::vector<Tensor> parts = tensor.SplitEvenly(rails);
  parts.resize(local_ranks().size(), tensor.Slice(0, 0));
  return parts;
}

}  // namespace syncline::hierarchical
