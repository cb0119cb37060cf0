#include "launch/output/tail.h"

#include <utility>

namespace syncline::launch {
namespace {

// The size of what precedes the last lines of `bytes` that are kept.
size_t Superfluous(absl::string_view bytes) {
  size_t begin = bytes.size();
  for (size_t lines = 0; lines <= Tail::kMaxLines; ++lines) {
    begin = bytes.substr(0, begin).rfind('\n');
    if (begin == absl::string_view::npos) return 0;
  }
  return begin;
}

}  // namespace

void Tail::Feed(absl::string_view bytes) {
  bytes.remove_prefix(Superfluous(bytes));
  for (const char byte : bytes) {
    if (byte == '\n') {
      lines_.push_back(std::exchange(current_, std::string()));
      if (lines_.size() > kMaxLines) lines_.pop_front();
      returned_ = false;
    } else if (byte == '\r') {
      returned_ = true;
    } else {
      if (std::exchange(returned_, false)) current_.clear();
      if (current_.size() < kMaxLineSize) current_ += byte;
    }
  }
}

std::vector<std::string> Tail::Lines() const {
  std::vector<std::string> lines(lines_.begin(), lines_.end());
  if (!current_.empty()) lines.push_back(current_);
  if (lines.size() > kMaxLines) lines.erase(lines.begin());
  return lines;
}

}  // namespace syncline::launch
