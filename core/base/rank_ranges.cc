#include "core/base/rank_ranges.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace syncline::base {
namespace internal {

std::vector<std::string> RangesOf(const std::vector<long long>& ranks) {
  std::vector<std::string> ranges;
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last < first + 3) last = first;  // A few read better one by one.
    ranges.push_back(last == first ? absl::StrCat(ranks[first])
                                   : absl::StrCat(ranks[first], "-", ranks[last]));
    first = last + 1;
  }
  return ranges;
}

std::string JoinRanges(const std::vector<std::string>& ranges) {
  return absl::StrJoin(ranges, ", ");
}

std::string NameRanges(const std::vector<std::string>& ranges) {
  if (ranges.empty()) return "no rank";
  if (ranges.size() == 1) {
    return absl::StrCat(absl::StrContains(ranges[0], '-') ? "ranks " : "rank ", ranges[0]);
  }
  const auto all = absl::MakeConstSpan(ranges);
  return absl::StrCat("ranks ", absl::StrJoin(all.first(all.size() - 1), ", "), " and ",
                      all.back());
}

}  // namespace internal

std::string ListRanks(const std::vector<int>& ranks) {
  std::vector<std::string> items;
  for (int rank : ranks) items.push_back(absl::StrCat(rank));
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", ListSome(items));
}

std::string ListSome(const std::vector<std::string>& items) {
  constexpr size_t kSome = 10;
  const size_t shown = std::min(items.size(), kSome);
  std::string list = absl::StrJoin(items.begin(), items.begin() + shown, ", ");
  if (shown < items.size()) absl::StrAppend(&list, " and ", items.size() - shown, " more");
  return list;
}

}  // namespace syncline::base
