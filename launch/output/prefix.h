// The prefix of each line of a worker on the console. Thread-safe.
#ifndef SYNCLINE_LAUNCH_OUTPUT_PREFIX_H_
#define SYNCLINE_LAUNCH_OUTPUT_PREFIX_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace syncline::launch {

// Text that may contain the time at which the line is shown.
class LinePrefix {
 public:
  LinePrefix() = default;
  LinePrefix(std::string text) : parts_({std::move(text)}) {}      // NOLINT: a text is a prefix.
  LinePrefix(const char* text) : LinePrefix(std::string(text)) {}  // NOLINT

  bool empty() const { return parts_.size() == 1 && parts_[0].empty(); }
  // `now` by the wall clock: "2026-05-01T12:34:56.789", in `zone`.
  std::string At(absl::Time now, absl::TimeZone zone) const;
  // As At(), now and here.
  std::string Text() const;

 private:
  friend absl::StatusOr<LinePrefix> ExpandPrefix(absl::string_view, const struct PrefixFacts&);

  std::vector<std::string> parts_ = {""};  // The time stands between them.
};

struct PrefixFacts {
  std::string role_name;
  int rank = 0;
  int local_rank = 0;
  int group_rank = 0;
  std::string host;
  int pid = 0;
};

// The text of --log-line-prefix-template with the worker's facts in it: ${role_name}, ${rank},
// ${local_rank}, ${group_rank}, ${host}, ${pid}; ${time} stays open. $rank is the same as ${rank},
// $$ is a dollar sign. ArgumentError, with the nearest name, for any other name.
absl::StatusOr<LinePrefix> ExpandPrefix(absl::string_view text, const PrefixFacts& facts);

// Whether ExpandPrefix takes `text`.
absl::Status CheckPrefixTemplate(absl::string_view text);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OUTPUT_PREFIX_H_
