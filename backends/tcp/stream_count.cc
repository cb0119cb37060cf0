#include "backends/tcp/stream_count.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "syncline/status.h"

namespace syncline::tcp {

absl::StatusOr<std::optional<int>> StreamsFromEnvironment() {
  constexpr char kVariable[] = "SYNCLINE_TCP_STREAMS";
  const std::optional<std::string> text = base::GetEnv(kVariable);
  if (!text.has_value()) return std::optional<int>();
  int count = 0;
  if (absl::SimpleAtoi(*text, &count) && count >= 1 && count <= kMaxStreams) return count;
  return ArgumentError(absl::StrCat(kVariable, " must be a number of connections from 1 to ",
                                    kMaxStreams, ", not '", *text, "'"));
}

}  // namespace syncline::tcp
