// Lists ranks in messages, so that a thousand of them fit into one line. Pure functions.
#ifndef SYNCLINE_CORE_BASE_RANK_RANGES_H_
#define SYNCLINE_CORE_BASE_RANK_RANGES_H_

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace syncline::base {

// "3", "0, 2, 5-9"; four or more ranks in a row are one range. `ranks` ascend.
template <typename Ranks>
std::string RankRanges(const Ranks& ranks);

// "no rank", "rank 3", "ranks 1 and 2", "ranks 0, 2 and 5-9".
template <typename Ranks>
std::string NameRanks(const Ranks& ranks);

// "rank 3", "ranks 0, 2, 5": one by one, for few ranks; at most ten, "and 20 more".
std::string ListRanks(const std::vector<int>& ranks);

// "a, b, c": at most ten items, "and 20 more".
std::string ListSome(const std::vector<std::string>& items);

// ---- Implementation ----

namespace internal {

std::vector<std::string> RangesOf(const std::vector<long long>& ranks);
std::string JoinRanges(const std::vector<std::string>& ranges);
std::string NameRanges(const std::vector<std::string>& ranges);

}  // namespace internal

template <typename Ranks>
std::string RankRanges(const Ranks& ranks) {
  return internal::JoinRanges(internal::RangesOf({std::begin(ranks), std::end(ranks)}));
}

template <typename Ranks>
std::string NameRanks(const Ranks& ranks) {
  return internal::NameRanges(internal::RangesOf({std::begin(ranks), std::end(ranks)}));
}

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_RANK_RANGES_H_
