// The LastCall that ranks record, for messages about ranks that are late.
#ifndef SYNCLINE_BACKENDS_SHM_LAST_CALL_H_
#define SYNCLINE_BACKENDS_SHM_LAST_CALL_H_

#include <string>

#include "backends/shm/segment_layout.h"
#include "syncline/backend.h"

namespace syncline::shm {

// Records the call of `context` in the segment. Any rank may read it at the same time.
void RecordCall(const CallContext& context, LastCall& last);

// "all_reduce #5", "recv #2 from rank 1"; empty if no call was recorded.
std::string NameOf(const LastCall& last);

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_LAST_CALL_H_
