// What the operations do to memory, said as plainly as possible: the specification of every
// backend's results.
#ifndef SYNCLINE_BACKENDS_LOCAL_MOVEMENT_H_
#define SYNCLINE_BACKENDS_LOCAL_MOVEMENT_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "backends/common/call.h"
#include "core/tensor/tensor.h"

namespace syncline {

// One rank's part in an operation: what it called, and its memory, as Backend's functions get it.
struct Part {
  Call call;
  Tensor tensor = {};
  absl::Span<const Tensor> outputs = {};
  absl::Span<const Tensor> inputs = {};
};

// Carries a collective out for all ranks; parts[r] is that of rank r. Requires CheckCollective of
// the calls.
void Execute(absl::Span<const Part> parts);

// Carries a send and its recv out. Requires CheckFits of the calls.
void Transfer(const Part& sent, const Part& received);

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_LOCAL_MOVEMENT_H_
