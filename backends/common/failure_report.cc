#include "backends/common/failure_report.h"

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "core/base/origin_line.h"
#include "syncline/error_origin.h"

namespace syncline::backends {
namespace {

// The lines of a report; the last, the message, may have more of them.
constexpr int kReportLines = 9;

std::string OneLine(absl::string_view text) { return absl::StrReplaceAll(text, {{"\n", " "}}); }

template <typename Number>
std::vector<Number> ParseNumbers(absl::string_view text) {
  std::vector<Number> numbers;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    Number number;
    if (absl::SimpleAtoi(word, &number)) numbers.push_back(number);
  }
  return numbers;
}

std::vector<int> ParseRanks(absl::string_view text, int size) {
  std::vector<int> ranks;
  for (const int rank : ParseNumbers<int>(text)) {
    if (rank >= 0 && rank < size) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

std::string SerializeReport(const Failure& failure) {
  const std::string calls =
      absl::StrJoin(failure.under_way, ",", [](std::string* out, const CallDescription& call) {
        absl::StrAppend(out, absl::StrJoin(call.ToWords(), " "));
      });
  return absl::StrCat(static_cast<int>(KindOf(failure.cause)), "\n",
                      absl::StrJoin(failure.lost, " "), "\n", calls, "\n",
                      absl::StrJoin(failure.waits_for, " "), "\n", OneLine(failure.idle), "\n",
                      OneLine(failure.operation), "\n", absl::FormatDuration(failure.timeout), "\n",
                      SerializeOrigin(failure.cause), "\n", failure.cause.message());
}

RankReport ParseReport(absl::string_view text, int size) {
  const std::vector<std::string> lines =
      absl::StrSplit(text, absl::MaxSplits('\n', kReportLines - 1));
  RankReport report;
  int kind;
  if (lines.size() != kReportLines || !absl::SimpleAtoi(lines[0], &kind)) return report;
  if (kind >= 0 && kind <= static_cast<int>(ErrorKind::kInternal)) {
    report.kind = static_cast<ErrorKind>(kind);
  }
  report.lost = ParseRanks(lines[1], size);
  for (absl::string_view words : absl::StrSplit(lines[2], ',', absl::SkipEmpty())) {
    absl::StatusOr<CallDescription> call = CallDescription::FromWords(ParseNumbers<int64_t>(words));
    if (call.ok()) report.under_way.push_back(*std::move(call));
  }
  report.waits_for = ParseRanks(lines[3], size);
  report.idle = lines[4];
  report.operation = lines[5];
  if (absl::Duration timeout; absl::ParseDuration(lines[6], &timeout)) report.timeout = timeout;
  if (absl::optional<ErrorOrigin> origin = base::ParseOriginInGroup(lines[7], size);
      origin.has_value()) {
    report.ranks = std::move(origin->ranks);
  }
  report.message = lines[8];
  return report;
}

}  // namespace syncline::backends
