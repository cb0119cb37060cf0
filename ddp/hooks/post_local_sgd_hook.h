// Averages gradients among few ranks, once training has come under way.
#ifndef SYNCLINE_DDP_HOOKS_POST_LOCAL_SGD_HOOK_H_
#define SYNCLINE_DDP_HOOKS_POST_LOCAL_SGD_HOOK_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "core/group/process_group.h"
#include "ddp/comm_hook.h"

namespace syncline {

// Up to `start_step` gradients are averaged over all ranks, afterwards only over those of
// `subgroup`, or, if there is none, of this rank's host; there the sum is divided by their number,
// whatever the bucket's divisor. Parameters must then be averaged over all ranks from time to time:
// see ParameterAverager (T. Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020,
// section 3). Bitwise equal within a subgroup only.
//
// Each rank gives the subgroup that it is in. ArgumentError if `start_step` is negative.
absl::StatusOr<std::shared_ptr<CommHook>> PostLocalSgdHook(
    int64_t start_step, std::shared_ptr<ProcessGroup> subgroup = nullptr);

}  // namespace syncline

#endif  // SYNCLINE_DDP_HOOKS_POST_LOCAL_SGD_HOOK_H_
