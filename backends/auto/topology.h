// Which ranks of a group are on which host, and how their data cross.
#ifndef SYNCLINE_BACKENDS_AUTO_TOPOLOGY_H_
#define SYNCLINE_BACKENDS_AUTO_TOPOLOGY_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor/tensor.h"

namespace syncline {

// As one rank sees it; all ranks see the same hosts. A lane is made of one rank of each host, that
// with the same place there; there are as many as the smallest host has ranks.
struct Topology {
  // identities[r] is equal for ranks of one host; see Peer::identity.
  Topology(absl::Span<const std::string> identities, int rank);

  std::vector<std::vector<int>> hosts;  // Their ranks, ascending; in the order of their first ones.
  std::vector<int> host_of;             // By rank: index in `hosts`.
  std::vector<int> place_of;            // By rank: index among its host's.
  int host;                             // This rank's.
  int place;
  int lanes;
  int most;  // Ranks on one host.

  int size() const { return static_cast<int>(host_of.size()); }

  // Index of the host so many after this rank's, or before, around the circle of hosts.
  int HostAt(int distance) const { return (host + distance + host_count()) % host_count(); }
  int host_count() const { return static_cast<int>(hosts.size()); }
  bool is_even() const { return lanes == most; }  // Whether all hosts have equally many ranks.
  const std::vector<int>& here() const { return hosts[host]; }
  std::vector<int> lane() const;  // The ranks of this rank's lane, by host. Requires place < lanes.

  // The part of each rank of this host, by place: `tensor` in `parts` slices, of sizes as equal as
  // can be, and nothing for the others. Requires 1 <= parts <= lanes.
  std::vector<Tensor> Share(const Tensor& tensor, int parts) const;
};

// `tensor` in `parts` slices, of sizes as equal as can be.
std::vector<Tensor> Split(const Tensor& tensor, int parts);

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_AUTO_TOPOLOGY_H_
