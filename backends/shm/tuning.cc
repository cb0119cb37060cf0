#include "backends/shm/tuning.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "core/base/env.h"

namespace syncline {

Tuning TuningFor(int ranks) {
  const Tuning tuning = *std::find_if(std::begin(kTunings), std::end(kTunings) - 1,
                                      [ranks](const Tuning& it) { return ranks <= it.ranks; });
  Tuning other = tuning;
  const bool is_other = std::sscanf(GetEnv("SYNCLINE_SHM_TUNING").value_or("").c_str(),
                                    "%zu,%zu,%zu,%zu,%zu", &other.eager, &other.least_piece,
                                    &other.most_piece, &other.in_place, &other.in_place_piece) >= 3;
  return is_other ? other : tuning;
}

}  // namespace syncline
