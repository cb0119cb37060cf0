#include "backends/shm/thresholds.h"

#include <cstdio>

#include "core/base/env.h"

namespace syncline::shm {

Tuning ReadTuning() {
  Tuning tuning;
  const int fields =
      std::sscanf(base::GetEnv("SYNCLINE_SHM_TUNING").value_or("").c_str(), "%zu,%zu,%zu,%zu,%zu",
                  &tuning.eager_threshold, &tuning.min_chunk, &tuning.max_chunk,
                  &tuning.direct_access_threshold, &tuning.direct_chunk);
  // A malformed value counts as none: half of it would be a mixture that nobody has asked for.
  return fields >= 3 ? tuning : Tuning();
}

}  // namespace syncline::shm
