// Collectives of many bytes over several nodes, in which few bytes cross between nodes.
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_BANDWIDTH_ALGORITHMS_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_BANDWIDTH_ALGORITHMS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "backends/common/message_collectives.h"
#include "backends/hierarchical/hierarchical_call.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::hierarchical {

// Each function does what the method of Backend does. All rails carry data, each a part of it. The
// work is done in chunks of kChunkBytes: while one chunk crosses between the nodes, shared memory
// works on the next.
//
// All ranks of the group must call the same function, each with a HierarchicalCall of its own.
// Errors are those of HierarchicalCall. Results are bitwise equal on all ranks: a part is combined
// in the order of the nodes, by one rank or by two that do the same.

absl::Status BandwidthBroadcast(HierarchicalCall& call, const Tensor& tensor, int root);
absl::Status BandwidthAllReduce(HierarchicalCall& call, const Tensor& tensor, ReduceOp op);
absl::Status BandwidthReduce(HierarchicalCall& call, const Tensor& tensor, ReduceOp op, int root);
absl::Status BandwidthAllGather(HierarchicalCall& call, absl::Span<const Tensor> outputs,
                                const Tensor& input);
// Requires that the topology is even.
absl::Status BandwidthReduceScatter(HierarchicalCall& call, const Tensor& output,
                                    absl::Span<const Tensor> inputs, ReduceOp op);

// For ranks that know that their calls go together. Data between the nodes go from rank to rank
// over `between`, as they are needed by one rank only; within a node shared memory moves them.
absl::Status PairwiseGather(HierarchicalCall& call, backends::MessageCollectives& between,
                            absl::Span<const Tensor> outputs, const Tensor& input, int root);
absl::Status PairwiseScatter(HierarchicalCall& call, backends::MessageCollectives& between,
                             const Tensor& output, absl::Span<const Tensor> inputs, int root);
absl::Status PairwiseAllToAll(HierarchicalCall& call, backends::MessageCollectives& between,
                              absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs);

// Require that each node has one rank, and that the tensors of all ranks have one size. Ranks send
// their data behind their records, and receive it where it belongs once the records agree.
absl::Status BandwidthGather(HierarchicalCall& call, absl::Span<const Tensor> outputs,
                             const Tensor& input, int root);
absl::Status BandwidthScatter(HierarchicalCall& call, const Tensor& output,
                              absl::Span<const Tensor> inputs, int root);

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_BANDWIDTH_ALGORITHMS_H_
