// The fingerprint of a call, which ranks compare in an entry slot, and the LastCall that they
// record for messages about ranks that are late.
#ifndef SYNCLINE_BACKENDS_SHM_CALL_FINGERPRINT_H_
#define SYNCLINE_BACKENDS_SHM_CALL_FINGERPRINT_H_

#include <string>

#include "backends/common/call.h"
#include "backends/shm/segment_layout.h"

namespace syncline::shm {

// Sets the fingerprint of `content`. Those of two calls are equal, with overwhelming likelihood, if
// and only if SameCollective is true of the calls.
void SetFingerprint(const Call& call, EntrySlot::Content& content);

bool SameFingerprint(const EntrySlot::Content& a, const EntrySlot::Content& b);

// "all_reduce #5". Accepts any bytes, since another process has written them.
std::string NameOfFingerprint(const EntrySlot::Content& content);

// Records the call in the segment. Any rank may read it at the same time.
void RecordCall(const Call& call, LastCall& last);

// "all_reduce #5", "recv #2 from rank 1"; empty if no call was recorded.
std::string NameOf(const LastCall& last);

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_CALL_FINGERPRINT_H_
