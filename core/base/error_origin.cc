#include "syncline/error_origin.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/base/origin_line.h"
#include "core/base/rank_ranges.h"

namespace syncline {
namespace {

// The payload that carries the origin, as the line that SerializeOrigin returns:
//   ranks ; 1 if lacks_arguments, else 0 { ; sequence peer rank name }
// where ranks are those of RankRanges: "0-3, 7".
constexpr absl::string_view kOriginUrl = "syncline/error-origin";

// Adds the ranks below `size`, so that what others write costs no more than the group has ranks.
bool ParseRanks(absl::string_view text, int size, std::vector<int>* ranks) {
  for (absl::string_view range : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    int first, last;
    if (!absl::SimpleAtoi(ends.first, &first)) return false;
    last = first;
    if (!ends.second.empty() && !absl::SimpleAtoi(ends.second, &last)) return false;
    if (first < 0 || last < first || last >= base::kMaxRanks) return false;
    for (int rank = first; rank <= last && rank < size; ++rank) ranks->push_back(rank);
    if (ranks->size() > base::kMaxRanks) return false;
  }
  return true;
}

// Leaves the ranks in [0, size), sorted and each once.
void Normalize(int size, std::vector<int>* ranks) {
  const auto is_outside = [size](int rank) { return rank < 0 || rank >= size; };
  ranks->erase(std::remove_if(ranks->begin(), ranks->end(), is_outside), ranks->end());
  std::sort(ranks->begin(), ranks->end());
  ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
}

std::string Serialize(const ErrorOrigin& origin) {
  std::string line =
      absl::StrCat(base::RankRanges(origin.ranks), ";", origin.lacks_arguments ? 1 : 0);
  for (const ErrorOrigin::Operation& operation : origin.operations) {
    // A name may come from a user's backend.
    absl::StrAppend(&line, ";", operation.sequence, " ", operation.peer, " ", operation.rank, " ",
                    absl::StrReplaceAll(operation.name, {{";", " "}, {"\n", " "}}));
  }
  return line;
}

}  // namespace

absl::Status WithOrigin(absl::Status status, ErrorOrigin origin) {
  if (status.ok()) return status;
  Normalize(base::kMaxRanks, &origin.ranks);
  status.SetPayload(kOriginUrl, absl::Cord(Serialize(origin)));
  return status;
}

absl::Status WithRanks(absl::Status status, std::vector<int> ranks) {
  if (status.ok()) return status;
  ErrorOrigin origin = OriginOf(status).value_or(ErrorOrigin());
  origin.ranks = std::move(ranks);
  return WithOrigin(std::move(status), std::move(origin));
}

absl::Status WithOperation(absl::Status status, ErrorOrigin::Operation operation) {
  if (status.ok()) return status;
  ErrorOrigin origin = OriginOf(status).value_or(ErrorOrigin());
  origin.operations = {std::move(operation)};
  return WithOrigin(std::move(status), std::move(origin));
}

absl::Status WithOriginOf(absl::Status status, const absl::Status& other) {
  absl::optional<ErrorOrigin> origin = OriginOf(other);
  if (!origin.has_value()) return status;
  return WithOrigin(std::move(status), *std::move(origin));
}

absl::optional<ErrorOrigin> OriginOf(const absl::Status& status) {
  return ParseOrigin(SerializeOrigin(status));
}

std::vector<int> RanksOf(const absl::Status& status) {
  absl::optional<ErrorOrigin> origin = OriginOf(status);
  return origin.has_value() ? std::move(origin->ranks) : std::vector<int>();
}

absl::optional<ErrorOrigin> ParseOrigin(absl::string_view line) {
  return base::ParseOriginInGroup(line, base::kMaxRanks);
}

std::string SerializeOrigin(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kOriginUrl);
  return payload.has_value() ? std::string(*payload) : std::string();
}

absl::optional<ErrorOrigin> base::ParseOriginInGroup(absl::string_view line, int size) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, ';');
  ErrorOrigin origin;
  if (fields.size() < 2 || (fields[1] != "0" && fields[1] != "1")) return absl::nullopt;
  if (!ParseRanks(fields[0], size, &origin.ranks)) return absl::nullopt;
  Normalize(size, &origin.ranks);
  origin.lacks_arguments = fields[1] == "1";
  for (size_t i = 2; i < fields.size(); ++i) {
    const std::vector<absl::string_view> words = absl::StrSplit(fields[i], absl::MaxSplits(' ', 3));
    ErrorOrigin::Operation operation;
    if (words.size() != 4 || !absl::SimpleAtoi(words[0], &operation.sequence) ||
        !absl::SimpleAtoi(words[1], &operation.peer) ||
        !absl::SimpleAtoi(words[2], &operation.rank)) {
      return absl::nullopt;
    }
    operation.name = std::string(words[3]);
    origin.operations.push_back(std::move(operation));
  }
  return origin;
}

}  // namespace syncline
