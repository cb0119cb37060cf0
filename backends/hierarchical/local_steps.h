// Steps on one rank of which several algorithms are made.
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_LOCAL_STEPS_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_LOCAL_STEPS_H_

#include "absl/types/span.h"
#include "backends/hierarchical/hierarchical_call.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::hierarchical {

// A copy of `tensor`, in the arena.
Tensor CopyOf(HierarchicalCall& call, const Tensor& tensor);

// Reduces the `terms` of all nodes, in their order, to `tensor`.
void Combine(const HierarchicalCall& call, const Tensor& tensor,
             absl::Span<const void* const> terms, ReduceOp op);

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_LOCAL_STEPS_H_
