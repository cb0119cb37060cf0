#include "backends/common/call_fingerprint.h"

#include "core/base/hash.h"

namespace syncline::backends {

CallFingerprint CallFingerprint::Of(const CallContext& context) {
  const Collective& call = *context.collective;
  CallFingerprint fingerprint = {};
  fingerprint.sequence = context.sequence;
  fingerprint.hash = SaltOf(context);
  fingerprint.peer = call.peer;
  fingerprint.kind = static_cast<uint8_t>(call.kind);
  fingerprint.dtype = static_cast<uint8_t>(call.dtype());
  fingerprint.reduce_op = static_cast<uint8_t>(call.reduce_op);
  if (HasFixedSize(call.kind)) {
    if (call.tensor != nullptr) fingerprint.count = call.tensor->numel();
  } else if (call.kind != OpKind::kAllToAll) {
    // This rank's own tensor may differ in size from those of others; the list is the same on all.
    base::WordHash sizes;
    for (const Tensor& tensor : call.kind == OpKind::kAllGather ? call.outputs : call.inputs) {
      sizes.Add(static_cast<uint64_t>(tensor.numel()));
    }
    fingerprint.hash ^= sizes.value();
  }
  return fingerprint;
}

}  // namespace syncline::backends
