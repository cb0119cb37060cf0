// Collectives over several hosts of few bytes: with the fewest messages.
#ifndef SYNCLINE_BACKENDS_AUTO_SHORT_CALLS_H_
#define SYNCLINE_BACKENDS_AUTO_SHORT_CALLS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "backends/auto/passage.h"
#include "core/tensor/reduce_op.h"
#include "core/tensor/tensor.h"

namespace syncline {

// The functions are those of Backend. Of each host one rank, the leader, collects what its ranks
// have, exchanges that with the other hosts' leaders in one message, and hands out the result.

absl::Status ShortBroadcast(Passage& passage, const Tensor& tensor, int root);
absl::Status ShortAllReduce(Passage& passage, const Tensor& tensor, ReduceOp op);
absl::Status ShortReduce(Passage& passage, const Tensor& tensor, ReduceOp op, int root);
absl::Status ShortAllGather(Passage& passage, absl::Span<const Tensor> outputs,
                            const Tensor& input);
absl::Status ShortReduceScatter(Passage& passage, const Tensor& output,
                                absl::Span<const Tensor> inputs, ReduceOp op);

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_AUTO_SHORT_CALLS_H_
