#include "store/common/errors.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "syncline/status.h"

namespace syncline::store {
namespace {

constexpr size_t kKeysShown = 8;
constexpr size_t kBytesShown = 100;

std::string Quote(absl::string_view key) {
  absl::string_view rest = key.size() > kBytesShown ? "..." : "";
  return absl::StrCat("'", absl::CHexEscape(key.substr(0, kBytesShown)), rest, "'");
}

}  // namespace

absl::Status CheckKey(absl::string_view key) {
  if (!key.empty()) return absl::OkStatus();
  return ArgumentError("a key is empty; keys have at least one byte");
}

absl::Status CheckKeys(absl::Span<const std::string> keys) {
  for (const std::string& key : keys) SYNCLINE_RETURN_IF_ERROR(CheckKey(key));
  return absl::OkStatus();
}

absl::Status CheckPairs(absl::Span<const std::string> keys, absl::Span<const std::string> values) {
  if (keys.size() != values.size()) {
    return ArgumentError(absl::StrCat(keys.size(), " keys but ", values.size(),
                                      " values; pass one value for each key"));
  }
  return CheckKeys(keys);
}

std::string DescribeKey(absl::string_view key) { return absl::StrCat("key ", Quote(key)); }

std::string DescribeKeys(absl::Span<const std::string> keys) {
  if (keys.size() == 1) return DescribeKey(keys[0]);
  std::vector<std::string> shown;
  for (const std::string& key : keys.subspan(0, std::min(keys.size(), kKeysShown))) {
    shown.push_back(Quote(key));
  }
  std::string text = absl::StrCat("keys ", absl::StrJoin(shown, ", "));
  if (keys.size() > kKeysShown) absl::StrAppend(&text, " and ", keys.size() - kKeysShown, " more");
  return text;
}

absl::Status NotSetError(absl::string_view store, absl::Span<const std::string> missing,
                         absl::Duration timeout) {
  return TimeoutError(absl::StrCat("store ", store, ": ", DescribeKeys(missing), " not set after ",
                                   absl::FormatDuration(std::max(timeout, absl::ZeroDuration())),
                                   "; see whether the process that sets ",
                                   missing.size() == 1 ? "it" : "them", " is still alive"));
}

absl::Status AnnotateStore(const absl::Status& status, absl::string_view store) {
  return status.ok() ? status : Annotate(status, absl::StrCat("store ", store));
}

}  // namespace syncline::store
