// The collectives that are derived from the basic ones: on several tensors at once ("coalesced"),
// and on several tensors of one process ("multi", the _multigpu functions of torch.distributed).
//
// Each function makes the plan of one, which ProcessGroup checks and runs; `size` is the number of
// ranks of the group, `rank` this rank. ArgumentError or TypeError if the tensors do not fit each
// other, or share memory where something is written: only what a rank passes to itself may be the
// same memory on both sides. All ranks must call the same function with tensors of the same types
// and sizes, in the same order.
#ifndef SYNCLINE_CORE_GROUP_DERIVED_H_
#define SYNCLINE_CORE_GROUP_DERIVED_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/group/derived_checks.h"
#include "core/group/plan.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::group {

// Several tensors in one transfer, packed into one buffer. Those that reduce take tensors of one
// type. outputs[i * size + r] receives inputs[i] of rank r; inputs[i * size + r] goes to rank r's
// outputs[i].
absl::StatusOr<Plan> BroadcastCoalesced(const Tensors& tensors, int root, int rank);
absl::StatusOr<Plan> AllReduceCoalesced(const Tensors& tensors, ReduceOp op, double factor);
absl::StatusOr<Plan> AllGatherCoalesced(const Tensors& outputs, const Tensors& inputs, int rank,
                                        int size);
absl::StatusOr<Plan> ReduceScatterCoalesced(const Tensors& outputs, const Tensors& inputs,
                                            ReduceOp op, double factor, int rank, int size);

// Several tensors of equal type and size in each process, as if each were a rank's own; process r
// has the places r * n to r * n + n - 1 of the n * size.
absl::StatusOr<Plan> BroadcastMulti(const Tensors& tensors, int root, int64_t root_tensor,
                                    int rank);
absl::StatusOr<Plan> AllReduceMulti(const Tensors& tensors, ReduceOp op, double factor);
absl::StatusOr<Plan> ReduceMulti(const Tensors& tensors, int root, ReduceOp op, int64_t root_tensor,
                                 double factor, int rank);
// outputs[i * n * size + p] receives, for the i-th tensor, that of place p.
absl::StatusOr<Plan> AllGatherMulti(const Tensors& outputs, const Tensors& inputs, int rank,
                                    int size);
// inputs[i * n * size + p] is what the i-th tensor adds to the result at place p.
absl::StatusOr<Plan> ReduceScatterMulti(const Tensors& outputs, const Tensors& inputs, ReduceOp op,
                                        double factor, int rank, int size);

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_DERIVED_H_
