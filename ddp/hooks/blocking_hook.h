// Communication hooks that compute and communicate step by step, on a thread of their own.
#ifndef SYNCLINE_DDP_HOOKS_BLOCKING_HOOK_H_
#define SYNCLINE_DDP_HOOKS_BLOCKING_HOOK_H_

#include <memory>

#include "ddp/hooks/bucket_averager.h"
#include "syncline/comm_hook.h"

namespace syncline::ddp {

// A hook that runs `averager` on one bucket after another, in the background. Its operations go by
// a group that Attach splits off, since they must not mix with others of the reducer's group.
// Attach is a MismatchError, on all ranks, if the ranks' averagers differ in their ToString().
//
// If it fails on one rank, the group is aborted, so that the others' fail too and quote it. Later
// buckets fail too, until the hook is attached again. To destroy the hook aborts what is in flight.
std::shared_ptr<CommHook> MakeBlockingHook(std::unique_ptr<BucketAverager> averager);

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_HOOKS_BLOCKING_HOOK_H_
