#include "backends/common/comparison.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/rank_ranges.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

constexpr char kAtOnceMark = 'd', kAsTheyGoMark = 'l';

}  // namespace

Comparison DefaultComparison() {
  const std::string value = base::GetEnv("SYNCLINE_DEBUG").value_or("");
  return absl::AsciiStrToLower(value) == "detail" ? Comparison::kAtOnce : Comparison::kAsTheyGo;
}

char MarkOf(Comparison comparison) {
  return comparison == Comparison::kAtOnce ? kAtOnceMark : kAsTheyGoMark;
}

Comparison ComparisonOf(char mark) {
  return mark == kAtOnceMark ? Comparison::kAtOnce : Comparison::kAsTheyGo;
}

absl::Status CheckAllCompareAtOnceOrNone(absl::Span<const Comparison> of_ranks) {
  std::vector<int> at_once, as_they_go;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const bool is_at_once = of_ranks[rank] == Comparison::kAtOnce;
    (is_at_once ? at_once : as_they_go).push_back(static_cast<int>(rank));
  }
  if (at_once.empty() || as_they_go.empty()) return absl::OkStatus();
  const absl::Status mismatch = MismatchError(
      absl::StrCat("ranks must all compare their calls at once (SYNCLINE_DEBUG=detail), or none of "
                   "them: ",
                   base::NameRanks(at_once), " would, ", base::NameRanks(as_they_go),
                   " would not; set SYNCLINE_DEBUG to the same value on all ranks"));
  at_once.insert(at_once.end(), as_they_go.begin(), as_they_go.end());
  return WithRanks(mismatch, std::move(at_once));
}

}  // namespace syncline::backends
