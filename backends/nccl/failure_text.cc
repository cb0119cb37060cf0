#include "backends/nccl/failure_text.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "core/base/origin_line.h"
#include "syncline/check.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::nccl {

std::string SerializeFailure(const ReportedFailure& failure) {
  SYNCLINE_DCHECK(!failure.cause.ok());
  return absl::StrCat(static_cast<int>(KindOf(failure.cause)), "\n", failure.reporter, "\n",
                      SerializeOrigin(failure.cause), "\n", failure.cause.message());
}

ReportedFailure ParseFailure(absl::string_view text, int size) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, absl::MaxSplits('\n', 3));
  int kind = 0, reporter = 0;
  if (lines.size() != 4 || !absl::SimpleAtoi(lines[0], &kind) ||
      !absl::SimpleAtoi(lines[1], &reporter) || kind < 0 ||
      kind > static_cast<int>(ErrorKind::kInternal)) {
    return {-1, BackendError("a rank has failed, and its report is not understood")};
  }
  ReportedFailure failure;
  failure.reporter = reporter >= 0 && reporter < size ? reporter : -1;
  failure.cause = ErrorOfKind(static_cast<ErrorKind>(kind), lines[3]);
  absl::optional<ErrorOrigin> origin = base::ParseOriginInGroup(lines[2], size);
  if (origin.has_value()) failure.cause = WithOrigin(failure.cause, *std::move(origin));
  return failure;
}

}  // namespace syncline::nccl
