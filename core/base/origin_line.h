// The line of an ErrorOrigin, as the processes of one group exchange it.
#ifndef SYNCLINE_CORE_BASE_ORIGIN_LINE_H_
#define SYNCLINE_CORE_BASE_ORIGIN_LINE_H_

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "syncline/error_origin.h"

namespace syncline::base {

// More ranks than any group has. No origin has a rank outside of [0, kMaxRanks).
inline constexpr int kMaxRanks = 1 << 20;

// As ParseOrigin, for the line of another process of a group of `size` ranks: those that the group
// does not have are dropped, so that the others may be used as indices.
absl::optional<ErrorOrigin> ParseOriginInGroup(absl::string_view line, int size);

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_ORIGIN_LINE_H_
