#include "core/store/error_text.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/origin_line.h"
#include "syncline/check.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::store {

std::string SerializeError(const absl::Status& error) {
  SYNCLINE_DCHECK(!error.ok());
  return absl::StrCat(static_cast<int>(KindOf(error)), "\n", SerializeOrigin(error), "\n",
                      error.message());
}

absl::optional<absl::Status> ParseError(absl::string_view text, int size) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, absl::MaxSplits('\n', 2));
  int kind;
  if (lines.size() != 3 || !absl::SimpleAtoi(lines[0], &kind) || kind < 0 ||
      kind > static_cast<int>(ErrorKind::kInternal)) {
    return absl::nullopt;
  }
  absl::Status error = ErrorOfKind(static_cast<ErrorKind>(kind), lines[2]);
  absl::optional<ErrorOrigin> origin = base::ParseOriginInGroup(lines[1], size);
  return origin.has_value() ? WithOrigin(std::move(error), *std::move(origin)) : error;
}

}  // namespace syncline::store
