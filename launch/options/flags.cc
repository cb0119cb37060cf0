#include "launch/options/flags.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

// The number of single-character edits that turn `a` into `b`.
// V. I. Levenshtein, "Binary codes capable of correcting deletions, insertions, and reversals".
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substitution, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::vector<std::string> Spellings() {
  std::vector<std::string> names;
  for (const Flag& flag : AllFlags()) names.push_back(absl::StrCat("--", flag.name));
  return names;
}

absl::Status Unknown(absl::string_view word, absl::string_view dashed) {
  const std::string nearest = NearestMatch(dashed, Spellings());
  return ArgumentError(
      absl::StrCat("unknown option ", word, ". ",
                   nearest.empty() ? "See --help" : absl::StrCat("Did you mean ", nearest, "?"),
                   " (Options of the script go behind the script.)"));
}

}  // namespace

const Flag& FlagNamed(absl::string_view name) {
  for (const Flag& flag : AllFlags()) {
    if (flag.name == name) return flag;
  }
  std::fprintf(stderr, "no option is called %s\n", std::string(name).c_str());
  std::abort();
}

absl::StatusOr<const Flag*> FindFlag(absl::string_view word) {
  if (!absl::StartsWith(word, "--")) {
    for (const Flag& flag : AllFlags()) {
      if (flag.letter != '\0' && word.size() == 2 && word[1] == flag.letter) return &flag;
    }
    return Unknown(word, word);
  }
  const std::string dashed = absl::StrReplaceAll(word, {{"_", "-"}});
  const absl::string_view name = absl::string_view(dashed).substr(2);
  std::vector<const Flag*> matches;
  for (const Flag& flag : AllFlags()) {
    if (flag.name == name) return &flag;
    if (!name.empty() && absl::StartsWith(flag.name, name)) matches.push_back(&flag);
  }
  if (matches.size() == 1) return matches[0];
  if (matches.empty()) return Unknown(word, dashed);
  return ArgumentError(absl::StrCat(word, " may mean ",
                                    absl::StrJoin(matches, " or ",
                                                  [](std::string* out, const Flag* flag) {
                                                    absl::StrAppend(out, "--", flag->name);
                                                  }),
                                    ": write which"));
}

std::string NearestMatch(absl::string_view word, absl::Span<const std::string> candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    size_t distance = EditDistance(word, candidate);
    // Half a name is a likely mistake too, and far away in edits.
    if (word.size() >= 4 && absl::StartsWith(candidate, word)) distance = 1;
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string Suggestion(absl::string_view word, absl::Span<const std::string> candidates) {
  const std::string nearest = NearestMatch(word, candidates);
  if (!nearest.empty()) return absl::StrCat(" Did you mean '", nearest, "'?");
  return absl::StrCat(" It is one of ", absl::StrJoin(candidates, ", "), ".");
}

}  // namespace syncline::launch
