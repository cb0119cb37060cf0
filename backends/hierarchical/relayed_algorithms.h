// Latency algorithms in which leaders hear of some nodes through others: what passes between them.
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_RELAYED_ALGORITHMS_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_RELAYED_ALGORITHMS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "backends/hierarchical/hierarchical_call.h"
#include "syncline/tensor.h"

namespace syncline::hierarchical {

// For leaders, in calls that relay. Every leader gets what each has, in ceil(log2 n) rounds. Errors
// are those of HierarchicalCall; what has been received is valid if there is none.

// Leaves the elements of each node in the arena, in one piece: terms[node].
absl::Status RelayTerms(HierarchicalCall& call, const Tensor& tensor,
                        absl::Span<const void*> terms);

// Fills the parts of all nodes, by node, of which this node's is there already.
absl::Status RelayParts(HierarchicalCall& call, absl::Span<const Tensor> parts);

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_RELAYED_ALGORITHMS_H_
