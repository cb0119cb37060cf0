#include "backends/shm/thresholds.h"

#include <cstdio>

#include "core/base/env.h"

namespace syncline::shm {

Tuning ReadTuning() {
  Tuning tuning;
  const int fields = std::sscanf(
      base::GetEnv("SYNCLINE_SHM_TUNING").value_or("").c_str(), "%zu,%zu,%zu,%zu,%zu,%zu",
      &tuning.eager_threshold, &tuning.min_chunk, &tuning.max_chunk,
      &tuning.direct_access_threshold, &tuning.direct_chunk, &tuning.cma_threshold);
  // A malformed value counts as none: half of it would be a mixture that nobody has asked for.
  if (fields < 3) return Tuning();
  tuning.shared_cores_eager_threshold = tuning.eager_threshold;
  return tuning;
}

bool CmaMayPay(OpKind kind, size_t bytes, bool is_oversubscribed) {
  if (!is_oversubscribed || bytes < kCmaMinBytes) return false;
  return kind == OpKind::kAllToAll || (kind == OpKind::kSend && bytes <= kCmaMaxMessageBytes);
}

}  // namespace syncline::shm
