#include "backends/shm/last_call.h"

#include "backends/common/call_description.h"
#include "backends/common/call_fingerprint.h"

namespace syncline::shm {
namespace {

// Distinguishes a recorded call from the zeros of a new segment.
constexpr uint64_t kIsRecorded = 1 << 8;

}  // namespace

// Relaxed, here and below: a reader that sees halves of two calls only names a wrong one.
void RecordCall(const CallContext& context, LastCall& last) {
  const Collective& call = *context.collective;
  const uint64_t peer = static_cast<uint32_t>(call.peer);
  last.what.store(kIsRecorded | static_cast<uint64_t>(call.kind) | peer << 32,
                  std::memory_order_relaxed);
  last.sequence.store(context.sequence, std::memory_order_relaxed);
}

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
