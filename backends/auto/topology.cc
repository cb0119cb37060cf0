#include "backends/auto/topology.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

namespace syncline {

Topology::Topology(absl::Span<const std::string> identities, int rank) {
  std::map<std::string, int> index;
  for (size_t r = 0; r < identities.size(); ++r) {
    const auto [found, is_new] = index.try_emplace(identities[r], static_cast<int>(hosts.size()));
    if (is_new) hosts.emplace_back();
    std::vector<int>& ranks = hosts[found->second];
    host_of.push_back(found->second);
    place_of.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(r));
  }
  host = host_of[rank];
  place = place_of[rank];
  const auto [smallest, largest] = std::minmax_element(
      hosts.begin(), hosts.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  lanes = static_cast<int>(smallest->size());
  most = static_cast<int>(largest->size());
}

std::vector<int> Topology::lane() const {
  std::vector<int> ranks;
  for (const std::vector<int>& those : hosts) ranks.push_back(those[place]);
  return ranks;
}

std::vector<Tensor> Topology::Share(const Tensor& tensor, int parts) const {
  std::vector<Tensor> shares = Split(tensor, parts);
  shares.resize(here().size(), tensor.Slice(0, 0));
  return shares;
}

std::vector<Tensor> Split(const Tensor& tensor, int parts) {
  std::vector<Tensor> slices;
  const int64_t each = tensor.numel() / parts, more = tensor.numel() % parts;
  int64_t offset = 0;
  for (int p = 0; p < parts; ++p) {
    const int64_t count = each + (p < more ? 1 : 0);
    slices.push_back(tensor.Slice(offset, count));
    offset += count;
  }
  return slices;
}

}  // namespace syncline
