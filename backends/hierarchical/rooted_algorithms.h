// Latency algorithms of rooted operations in which ranks do not meet.
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_ROOTED_ALGORITHMS_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_ROOTED_ALGORITHMS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "backends/hierarchical/hierarchical_call.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::hierarchical {

// For calls that go ahead. The root is the leader of its node: data move between it and the other
// leaders, along a tree of nodes, and within the nodes between leaders and their ranks. What comes
// from other nodes goes to memory of the arena, not to the caller's, which another call's elements
// must not reach. Leaders send to other nodes before they give to the ranks of their own, which are
// nearer.
//
// Each function does what the method of Backend does, as those of latency_algorithms.h do.

absl::Status BroadcastAhead(HierarchicalCall& call, const Tensor& tensor, int root_node);
absl::Status ReduceAhead(HierarchicalCall& call, const Tensor& tensor, ReduceOp op, int root_node);
absl::Status GatherAhead(HierarchicalCall& call, absl::Span<const Tensor> outputs,
                         const Tensor& input, int root_node);
absl::Status ScatterAhead(HierarchicalCall& call, const Tensor& output,
                          absl::Span<const Tensor> inputs, int root_node);

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_ROOTED_ALGORITHMS_H_
