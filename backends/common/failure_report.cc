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
constexpr int kReportLines = 8;

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

}  // namespace

std::string SerializeReport(const Failure& failure) {
  const std::string calls =
      absl::StrJoin(failure.under_way, ",", [](std::string* out, const CallDescription& call) {
        absl::StrAppend(out, absl::StrJoin(call.ToWords(), " "));
      });
  return absl::StrCat(static_cast<int>(KindOf(failure.cause)), "\n",
                      absl::StrJoin(failure.lost, " "), "\n", calls, "\n", OneLine(failure.idle),
                      "\n", OneLine(failure.operation), "\n", absl::FormatDuration(failure.timeout),
                      "\n", SerializeOrigin(failure.cause), "\n", failure.cause.message());
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
  for (int rank : ParseNumbers<int>(lines[1])) {
    if (rank >= 0 && rank < size) report.lost.push_back(rank);
  }
  for (absl::string_view words : absl::StrSplit(lines[2], ',', absl::SkipEmpty())) {
    absl::StatusOr<CallDescription> call = CallDescription::FromWords(ParseNumbers<int64_t>(words));
    if (call.ok()) report.under_way.push_back(*std::move(call));
  }
  report.idle = lines[3];
  report.operation = lines[4];
  if (absl::Duration timeout; absl::ParseDuration(lines[5], &timeout)) report.timeout = timeout;
  if (absl::optional<ErrorOrigin> origin = base::ParseOriginInGroup(lines[6], size);
      origin.has_value()) {
    report.ranks = std::move(origin->ranks);
  }
  report.message = lines[7];
  return report;
}

}  // namespace syncline::backends
