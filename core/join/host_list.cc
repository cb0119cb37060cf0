#include "core/join/host_list.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

constexpr size_t kMaxHosts = 100000;

absl::Status Malformed(absl::string_view list) {
  return ArgumentError(absl::StrCat("'", list, "' is no list of hosts such as a[01-03,7],b2"));
}

// Commas outside of brackets divide hosts.
std::vector<absl::string_view> SplitOutsideBrackets(absl::string_view list) {
  std::vector<absl::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i == list.size() || (list[i] == ',' && depth == 0)) {
      parts.push_back(list.substr(begin, i - begin));
      begin = i + 1;
    } else if (list[i] == '[') {
      ++depth;
    } else if (list[i] == ']') {
      --depth;
    }
  }
  return parts;
}

// "01-03,7": 01, 02, 03, 7.
absl::StatusOr<std::vector<std::string>> ExpandNumbers(absl::string_view text) {
  std::vector<std::string> numbers;
  for (absl::string_view range : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    const absl::string_view last = ends.second.empty() ? ends.first : ends.second;
    uint32_t low = 0;
    uint32_t high = 0;
    if (!absl::SimpleAtoi(ends.first, &low) || !absl::SimpleAtoi(last, &high) || high < low ||
        high - low >= kMaxHosts || range.back() == '-') {
      return Malformed(text);
    }
    for (uint32_t n = low; n <= high; ++n) {
      const std::string digits = absl::StrCat(n);
      const size_t width = std::max(ends.first.size(), digits.size());
      numbers.push_back(std::string(width - digits.size(), '0') + digits);
    }
  }
  return numbers;
}

absl::StatusOr<std::vector<std::string>> ExpandName(absl::string_view name) {
  std::vector<std::string> hosts = {""};
  while (!name.empty()) {
    const size_t open = name.find('[');
    const absl::string_view plain = name.substr(0, open);
    std::vector<std::string> numbers = {""};
    size_t end = plain.size();
    if (open != absl::string_view::npos) {
      const size_t close = name.find(']', open);
      if (close == absl::string_view::npos) return Malformed(name);
      SYNCLINE_ASSIGN_OR_RETURN(numbers, ExpandNumbers(name.substr(open + 1, close - open - 1)));
      end = close + 1;
    }
    if (hosts.size() * numbers.size() > kMaxHosts) return Malformed(name);
    std::vector<std::string> longer;
    for (const std::string& host : hosts) {
      for (const std::string& number : numbers) {
        longer.push_back(absl::StrCat(host, plain, number));
      }
    }
    hosts = std::move(longer);
    name.remove_prefix(end);
  }
  return hosts;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandHostList(absl::string_view list) {
  std::vector<std::string> all;
  for (absl::string_view name : SplitOutsideBrackets(list)) {
    if (name.empty()) return Malformed(list);
    SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, ExpandName(name));
    all.insert(all.end(), hosts.begin(), hosts.end());
    if (all.size() > kMaxHosts) return Malformed(list);
  }
  return all;
}

}  // namespace syncline::join
