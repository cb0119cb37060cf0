#include "backends/hierarchical/relayed_algorithms.h"

#include <algorithm>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "backends/common/tensor_steps.h"
#include "syncline/status.h"

namespace syncline::hierarchical {
namespace {

// Gives every node what each has. `all` is in the order of the ring of nodes from this one on: of
// the node at distance d, the elements from offsets[d] to offsets[d + 1], of which this node's are
// there already. In each of ceil(log2 n) rounds a leader passes on as much as it has itself. The
// rounds are those of the concatenation in J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal and
// D. Weathersby, "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing
// Systems", IEEE Trans. on Parallel and Distributed Systems 8 (1997), section 4.
absl::Status RelayAmongLeaders(HierarchicalCall& call, const Tensor& all,
                               absl::Span<const int64_t> offsets) {
  const Topology& topology = call.topology();
  SYNCLINE_RETURN_IF_ERROR(call.BeginRelayed());
  for (int distance = 1; distance < topology.node_count(); distance *= 2) {
    const int count = std::min(distance, topology.node_count() - distance);
    const int64_t begin = offsets[distance], end = offsets[distance + count];
    SYNCLINE_RETURN_IF_ERROR(call.Relay(topology.NodeAt(-distance), all.Slice(0, offsets[count]),
                                        topology.NodeAt(distance), all.Slice(begin, end - begin)));
  }
  return call.EndRelayed();
}

}  // namespace

absl::Status RelayTerms(HierarchicalCall& call, const Tensor& tensor,
                        absl::Span<const void*> terms) {
  const Topology& topology = call.topology();
  const Tensor all = call.arena().Allocate(tensor.dtype(), tensor.numel() * topology.node_count());
  absl::InlinedVector<int64_t, 16> offsets(topology.node_count() + 1);
  for (int distance = 0; distance <= topology.node_count(); ++distance) {
    offsets[distance] = distance * tensor.numel();
  }
  backends::CopyElements(tensor, all.Slice(0, tensor.numel()));
  for (int distance = 0; distance < topology.node_count(); ++distance) {
    terms[topology.NodeAt(distance)] = all.Slice(offsets[distance], tensor.numel()).data();
  }
  return RelayAmongLeaders(call, all, offsets);
}

absl::Status RelayParts(HierarchicalCall& call, absl::Span<const Tensor> parts) {
  const Topology& topology = call.topology();
  absl::InlinedVector<int64_t, 16> offsets = {0};
  for (int distance = 0; distance < topology.node_count(); ++distance) {
    offsets.push_back(offsets.back() + parts[topology.NodeAt(distance)].numel());
  }
  const Tensor all = call.arena().Allocate(parts[0].dtype(), offsets.back());
  backends::CopyElements(parts[topology.node], all.Slice(0, offsets[1]));
  SYNCLINE_RETURN_IF_ERROR(RelayAmongLeaders(call, all, offsets));
  for (int distance = 1; distance < topology.node_count(); ++distance) {
    const Tensor& part = parts[topology.NodeAt(distance)];
    backends::CopyElements(all.Slice(offsets[distance], part.numel()), part);
  }
  return absl::OkStatus();
}

}  // namespace syncline::hierarchical
