// When the ranks of a group compare a call with those of the others.
#ifndef SYNCLINE_BACKENDS_COMMON_COMPARISON_H_
#define SYNCLINE_BACKENDS_COMMON_COMPARISON_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace syncline::backends {

// The same on all ranks of a group, also of backends that always compare at once.
enum class Comparison {
  kAsTheyGo,  // As the contract of Backend says: a rank that only gives compares later.
  kAtOnce,    // In the call, on every rank: each waits there for all others.
};

// What SYNCLINE_DEBUG says: kAtOnce for "detail".
Comparison DefaultComparison();

// A letter, in which ranks tell each other theirs while they join; and what it says.
char MarkOf(Comparison comparison);
Comparison ComparisonOf(char mark);

// A MismatchError that names the ranks, unless all of them say the same. Has a value for each rank.
absl::Status CheckAllCompareAtOnceOrNone(absl::Span<const Comparison> of_ranks);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_COMPARISON_H_
