// Collectives over several hosts of many bytes: each byte crosses as seldom as can be.
#ifndef SYNCLINE_BACKENDS_AUTO_LONG_CALLS_H_
#define SYNCLINE_BACKENDS_AUTO_LONG_CALLS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "backends/auto/passage.h"
#include "core/tensor/reduce_op.h"
#include "core/tensor/tensor.h"

namespace syncline {

// The functions are those of Backend. All lanes carry, each a part; and all is done in chunks,
// while one of which crosses, shared memory works on the next.

absl::Status LongBroadcast(Passage& passage, const Tensor& tensor, int root);
absl::Status LongAllReduce(Passage& passage, const Tensor& tensor, ReduceOp op);
absl::Status LongReduce(Passage& passage, const Tensor& tensor, ReduceOp op, int root);
absl::Status LongAllGather(Passage& passage, absl::Span<const Tensor> outputs, const Tensor& input);
// Requires that the topology is even.
absl::Status LongReduceScatter(Passage& passage, const Tensor& output,
                               absl::Span<const Tensor> inputs, ReduceOp op);

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_AUTO_LONG_CALLS_H_
