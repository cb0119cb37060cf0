// Copies some lines of a stream to a file that streams share.
#ifndef SYNCLINE_LAUNCH_OUTPUT_LINE_FILTER_H_
#define SYNCLINE_LAUNCH_OUTPUT_LINE_FILTER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launch/output/log_file.h"
#include "launch/output/prefix.h"

namespace syncline::launch {

// Filters one stream of one worker: a line that contains any of the filters is written, as a whole,
// after the worker's prefix. A line longer than kMaxLine counts as several. Not thread-safe.
class LineFilter {
 public:
  static constexpr size_t kMaxLine = 64 << 10;

  // `file` must outlive the filter.
  LineFilter(std::vector<std::string> filters, LinePrefix prefix, OutputLog& file);

  // The errors are those of the file.
  absl::Status Feed(absl::string_view bytes);
  // The stream has ended, perhaps within a line.
  absl::Status End();

 private:
  bool Matches(absl::string_view line) const;

  std::vector<std::string> filters_;
  LinePrefix prefix_;
  OutputLog* file_;
  std::string line_;  // Whose end has not come.
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OUTPUT_LINE_FILTER_H_
