#include "backends/shm/last_call.h"

#include "backends/common/call_description.h"
#include "backends/common/call_fingerprint.h"

namespace syncline::shm {

std::string NameOf(const LastCall& last) {
  const uint64_t what = last.what.load(std::memory_order_relaxed);
  if ((what & kIsRecorded) == 0) return "";
  backends::CallFingerprint fingerprint = {};
  fingerprint.packed =
      backends::CallFingerprint::Pack(static_cast<OpKind>(what & 0xff), DType::kUInt8,
                                      ReduceOp::kSum, static_cast<int32_t>(what >> 32));
  fingerprint.sequence = last.sequence.load(std::memory_order_relaxed);
  return backends::CallDescription(fingerprint).ShortName();
}

}  // namespace syncline::shm
