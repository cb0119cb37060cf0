// Averages buckets as they are.
#ifndef SYNCLINE_DDP_HOOKS_ALL_REDUCE_HOOK_H_
#define SYNCLINE_DDP_HOOKS_ALL_REDUCE_HOOK_H_

#include <memory>

#include "ddp/comm_hook.h"

namespace syncline {

// One all-reduce in the reducer's own group: what a reducer without a hook does.
std::shared_ptr<CommHook> AllReduceHook();

}  // namespace syncline

#endif  // SYNCLINE_DDP_HOOKS_ALL_REDUCE_HOOK_H_
