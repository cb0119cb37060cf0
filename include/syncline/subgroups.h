// Groups made from other groups; see also World::NewGroup.
#ifndef SYNCLINE_SUBGROUPS_H_
#define SYNCLINE_SUBGROUPS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "syncline/process_group.h"

namespace syncline {

// Both make groups of ranks of `parent`, with its backend and through its store. Each waits for the
// ranks that must call it; a TimeoutError, on all of them, names those that did not, and a
// MismatchError, on all of them, two that called it with different arguments. `timeout` is the
// parent's if it is not given.

// The new group, one of `groups`, that holds this rank, numbered as listed; null if none does. All
// ranks of the parent must call it, with equal arguments; `groups` are lists of its ranks, each
// rank in one list at most. `timeout` is for the call and for operations of the new group.
absl::StatusOr<std::shared_ptr<ProcessGroup>> Split(ProcessGroup& parent,
                                                    const std::vector<std::vector<int>>& groups,
                                                    ProcessGroup::Timeout timeout = {});

// A group of the parent's ranks but `excluded`, in their order: how the survivors of a loss go on.
// Only they call it. The parent, which may be broken, is aborted if it is not, and lends its store,
// whose host must be alive. `timeout` is for the call; operations keep the parent's. May be called
// again with more ranks, or after an error.
absl::StatusOr<std::shared_ptr<ProcessGroup>> Shrink(ProcessGroup& parent,
                                                     const std::vector<int>& excluded,
                                                     ProcessGroup::Timeout timeout = {});

}  // namespace syncline

#endif  // SYNCLINE_SUBGROUPS_H_
