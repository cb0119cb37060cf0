// Keeps the last lines of a stream for a failure report.
#ifndef SYNCLINE_LAUNCH_OUTPUT_TAIL_H_
#define SYNCLINE_LAUNCH_OUTPUT_TAIL_H_

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace syncline::launch {

// Keeps kMaxLines lines. If carriage returns overwrite a line, it keeps the last state; of a very
// long line, the beginning. Not thread-safe.
class Tail {
 public:
  static constexpr size_t kMaxLines = 20;
  static constexpr size_t kMaxLineSize = 1000;

  void Feed(absl::string_view bytes);
  // An unfinished last line counts.
  std::vector<std::string> Lines() const;

 private:
  std::deque<std::string> lines_;
  std::string current_;
  bool returned_ = false;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OUTPUT_TAIL_H_
