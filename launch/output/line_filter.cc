#include "launch/output/line_filter.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace syncline::launch {

LineFilter::LineFilter(std::vector<std::string> filters, LinePrefix prefix, OutputLog& file)
    : filters_(std::move(filters)), prefix_(std::move(prefix)), file_(&file) {}

absl::Status LineFilter::Feed(absl::string_view bytes) {
  line_.append(bytes.data(), bytes.size());
  std::string matching;
  absl::string_view rest = line_;
  while (!rest.empty()) {
    size_t size = rest.find('\n');
    const bool whole = size != absl::string_view::npos;
    if (!whole && rest.size() <= kMaxLine) break;
    size = std::min(whole ? size : rest.size(), kMaxLine);
    const absl::string_view line = rest.substr(0, size);
    if (Matches(line)) {
      absl::StrAppend(&matching, prefix_.Text(), absl::StripSuffix(line, "\r"), "\n");
    }
    rest.remove_prefix(size + (size < rest.size() && rest[size] == '\n' ? 1 : 0));
  }
  line_.erase(0, line_.size() - rest.size());
  return matching.empty() ? absl::OkStatus() : file_->Write(matching);
}

absl::Status LineFilter::End() {
  if (line_.empty() || !Matches(line_)) return absl::OkStatus();
  return file_->Write(absl::StrCat(prefix_.Text(), std::exchange(line_, std::string()), "\n"));
}

bool LineFilter::Matches(absl::string_view line) const {
  return std::any_of(filters_.begin(), filters_.end(),
                     [&](const std::string& filter) { return absl::StrContains(line, filter); });
}

}  // namespace syncline::launch
