// The LastCall that ranks record, for messages about ranks that are late.
#ifndef SYNCLINE_BACKENDS_SHM_LAST_CALL_H_
#define SYNCLINE_BACKENDS_SHM_LAST_CALL_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "backends/shm/segment_layout.h"
#include "syncline/backend.h"

namespace syncline::shm {

// In LastCall::what of a recorded call; not in the zeros of a new segment.
inline constexpr uint64_t kIsRecorded = 1 << 8;

// Records the call of `context` in the segment. Any rank may read it at the same time: relaxed, as
// one that sees halves of two calls only names a wrong one.
inline void RecordCall(const CallContext& context, LastCall& last) {
  const Collective& call = context.quoted();
  const uint64_t peer = static_cast<uint32_t>(call.peer);
  last.what.store(kIsRecorded | static_cast<uint64_t>(call.kind) | peer << 32,
                  std::memory_order_relaxed);
  last.sequence.store(context.sequence, std::memory_order_relaxed);
}

// "all_reduce #5", "recv #2 from rank 1"; empty if no call was recorded.
std::string NameOf(const LastCall& last);

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_LAST_CALL_H_
