#include "backends/common/call_fingerprint.h"

#include "core/base/hash.h"
#include "syncline/check.h"

namespace syncline::backends {

uint64_t HashOfSizes(const Collective& call) {
  SYNCLINE_DCHECK(call.kind == OpKind::kAllGather || call.kind == OpKind::kReduceScatter);
  base::WordHash sizes;
  for (const Tensor& tensor : call.kind == OpKind::kAllGather ? call.outputs : call.inputs) {
    sizes.Add(static_cast<uint64_t>(tensor.numel()));
  }
  return sizes.value();
}

}  // namespace syncline::backends
