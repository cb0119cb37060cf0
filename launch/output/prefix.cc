#include "launch/output/prefix.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

constexpr char kTime[] = "time";

std::vector<std::pair<std::string, std::string>> Macros(const PrefixFacts& facts) {
  return {{"role_name", facts.role_name},
          {"rank", absl::StrCat(facts.rank)},
          {"local_rank", absl::StrCat(facts.local_rank)},
          {"group_rank", absl::StrCat(facts.group_rank)},
          {"host", facts.host},
          {"pid", absl::StrCat(facts.pid)},
          {kTime, ""}};
}

// Levenshtein's.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({replaced, row[j] + 1, row[j + 1] + 1}));
    }
  }
  return row.back();
}

absl::Status UnknownMacro(absl::string_view name) {
  std::vector<std::string> names;
  for (const auto& [known, value] : Macros({})) names.push_back(known);
  const auto nearest = *std::min_element(
      names.begin(), names.end(),
      [&](const auto& a, const auto& b) { return Distance(a, name) < Distance(b, name); });
  return ArgumentError(absl::StrCat("--log-line-prefix-template: there is no ${", name,
                                    "}. Did you mean ${", nearest, "}? There are ",
                                    absl::StrJoin(names, ", "), "; $$ is a dollar sign"));
}

bool IsNameByte(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// Takes the name of a macro, with or without braces, from the beginning of `rest`.
absl::StatusOr<std::string> TakeName(absl::string_view* rest) {
  const bool braces = !rest->empty() && rest->front() == '{';
  const size_t begin = braces ? 1 : 0;
  const size_t end = static_cast<size_t>(
      std::find_if_not(rest->begin() + begin, rest->end(), IsNameByte) - rest->begin());
  if (end == begin || (braces && (end == rest->size() || (*rest)[end] != '}'))) {
    return ArgumentError(absl::StrCat("--log-line-prefix-template: no name follows the $ before '",
                                      *rest, "'. Write ${rank}, or $$ for a dollar sign"));
  }
  std::string name(rest->substr(begin, end - begin));
  rest->remove_prefix(end + begin);
  return name;
}

}  // namespace

std::string LinePrefix::At(absl::Time now, absl::TimeZone zone) const {
  if (parts_.size() == 1) return parts_[0];
  return absl::StrJoin(parts_, absl::FormatTime("%Y-%m-%dT%H:%M:%E3S", now, zone));
}

std::string LinePrefix::Text() const {
  if (parts_.size() == 1) return parts_[0];
  return At(absl::Now(), absl::LocalTimeZone());
}

absl::StatusOr<LinePrefix> ExpandPrefix(absl::string_view text, const PrefixFacts& facts) {
  const auto macros = Macros(facts);
  LinePrefix prefix;
  absl::string_view rest = text;
  for (size_t dollar; (dollar = rest.find('$')) != absl::string_view::npos;) {
    absl::StrAppend(&prefix.parts_.back(), rest.substr(0, dollar));
    rest.remove_prefix(dollar + 1);
    if (!rest.empty() && rest.front() == '$') {
      prefix.parts_.back() += '$';
      rest.remove_prefix(1);
      continue;
    }
    SYNCLINE_ASSIGN_OR_RETURN(const std::string name, TakeName(&rest));
    const auto macro = std::find_if(macros.begin(), macros.end(),
                                    [&](const auto& each) { return each.first == name; });
    if (macro == macros.end()) return UnknownMacro(name);
    if (name == kTime) {
      prefix.parts_.emplace_back();
    } else {
      prefix.parts_.back() += macro->second;
    }
  }
  absl::StrAppend(&prefix.parts_.back(), rest);
  return prefix;
}

absl::Status CheckPrefixTemplate(absl::string_view text) {
  return ExpandPrefix(text, PrefixFacts()).status();
}

}  // namespace syncline::launch
