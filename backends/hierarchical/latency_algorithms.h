// Collectives of few bytes over several nodes, with the fewest messages.
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_LATENCY_ALGORITHMS_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_LATENCY_ALGORITHMS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "backends/hierarchical/hierarchical_call.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::hierarchical {

// Each function does what the method of Backend does, for tensors of at most kLatencyMaxBytes (not
// checked), or any of all_to_all. On each node one rank, the leader, collects what its ranks have,
// exchanges that with the leaders of the other nodes, in one message each or through others, and
// hands out the result.
//
// All ranks of the group must call the same function, each with a HierarchicalCall of its own.
// Errors are those of HierarchicalCall. LatencyAllReduce of an empty tensor is a barrier, and
// compares the calls.

absl::Status LatencyBroadcast(HierarchicalCall& call, const Tensor& tensor, int root);
absl::Status LatencyAllReduce(HierarchicalCall& call, const Tensor& tensor, ReduceOp op);
absl::Status LatencyReduce(HierarchicalCall& call, const Tensor& tensor, ReduceOp op, int root);
absl::Status LatencyAllGather(HierarchicalCall& call, absl::Span<const Tensor> outputs,
                              const Tensor& input);
absl::Status LatencyReduceScatter(HierarchicalCall& call, const Tensor& output,
                                  absl::Span<const Tensor> inputs, ReduceOp op);

// Require that the tensors of all ranks have one size.
absl::Status LatencyGather(HierarchicalCall& call, absl::Span<const Tensor> outputs,
                           const Tensor& input, int root);
absl::Status LatencyScatter(HierarchicalCall& call, const Tensor& output,
                            absl::Span<const Tensor> inputs, int root);

// What an all_to_all has come to. The same on all ranks.
enum class Exchanged : int64_t {
  kAll,      // The parts have been exchanged.
  kNothing,  // All parts have one size, and so fit.
  kNotEven,  // Whether the sizes fit is for the caller to see.
};
// Compares the calls, except for the sizes, and exchanges the parts where all of them have one size
// and those of a rank at most `most` bytes together.
absl::StatusOr<Exchanged> LatencyAllToAll(HierarchicalCall& call, absl::Span<const Tensor> outputs,
                                          absl::Span<const Tensor> inputs, size_t most);

// The same, where each node has one rank.
absl::StatusOr<Exchanged> LatencyAllToAllAlone(HierarchicalCall& call,
                                               absl::Span<const Tensor> outputs,
                                               absl::Span<const Tensor> inputs, size_t most);

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_LATENCY_ALGORITHMS_H_
