// Raises the launcher's limit of open descriptors, and keeps the inherited one for its workers.
#ifndef SYNCLINE_LAUNCH_DESCRIPTOR_LIMIT_H_
#define SYNCLINE_LAUNCH_DESCRIPTOR_LIMIT_H_

#include <sys/resource.h>

namespace syncline::launch {

// Raises this process's soft limit to the hard one, which needs no privilege: the store has a
// connection for each process of the job. Must be called before other threads start.
void RaiseDescriptorLimit();

// This process's limit before it was raised. Programs that call select(2) rely on a soft limit of
// 1024, so a child must get this one.
rlimit InheritedDescriptorLimit();

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_DESCRIPTOR_LIMIT_H_
