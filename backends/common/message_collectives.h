// The algorithms of collectives by messages: which rank sends what to whom.
#ifndef SYNCLINE_BACKENDS_COMMON_MESSAGE_COLLECTIVES_H_
#define SYNCLINE_BACKENDS_COMMON_MESSAGE_COLLECTIVES_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "backends/common/message_transport.h"
#include "backends/common/scratch_arena.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::backends {

// The sizes at which the algorithms change, in bytes.
struct MessageThresholds {
  // all_reduce and reduce of at most so many bytes are done in one exchange: every rank that needs
  // the result receives all elements. Larger ones are shared out among the ranks, in two exchanges.
  size_t direct_reduce_max;
  // A rank combines its part in pieces of so many bytes, one from each rank: one piece arrives
  // while the one before is combined. So two pieces from each rank are in memory at once.
  // all_to_all has two such pieces from each rank under way.
  size_t piece;
};

// One collective operation of one rank: make an object, call one method, destroy it. The methods do
// what those of the same name in include/syncline/collective.h say, and block until this rank's
// part is done. Requires that all ranks make calls that go together. Errors, and exceptions, are
// those of the transport.
//
//   operation                N <= direct_reduce_max        N > direct_reduce_max
//   all_reduce               DirectReduce to all ranks     ReduceScatter, then AllGather
//   reduce                   DirectReduce to the root      ReduceScatter, then Gather
//   reduce_scatter           PipelinedReduceScatter, in pieces of `piece`, of any size
//   broadcast                a binomial tree
//   all_gather               each rank to each other, all at once
//   all_to_all               the same, in pieces of `piece`
//   gather, scatter          the root with each other rank, all at once
//
// Reductions share the work out: rank r receives the r-th part of every rank's elements and
// combines them in the order of the ranks, with one rounding of the small float types. So results
// do not depend on timing, and are bitwise those of backend local.
//
// Not thread-safe. It borrows all that it is made of; tensors are borrowed for the call.
class MessageCollectives {
 public:
  // `scratch` is for this operation alone.
  MessageCollectives(MessageTransport& transport, const MessageThresholds& thresholds,
                     ScratchArena& scratch);

  absl::Status Broadcast(const Tensor& tensor, int root);
  absl::Status AllReduce(const Tensor& tensor, ReduceOp op);
  absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root);
  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input);
  absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root);
  absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root);
  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op);
  absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs);

 private:
  // Brings every rank's tensor to all of `receivers`, where it is combined.
  absl::Status DirectReduce(const Tensor& tensor, ReduceOp op, absl::Span<const int> receivers);

  MessageTransport& transport_;
  const MessageThresholds thresholds_;
  ScratchArena& scratch_;
  const int rank_;
  const int size_;
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_MESSAGE_COLLECTIVES_H_
